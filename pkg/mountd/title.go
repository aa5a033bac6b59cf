package mountd

import (
	"os"
	"strings"
	"unsafe"
)

// A process that is started before it is known what for cannot show that in
// its arguments, by which people look for it. So it is started as SpareCommand
// and with room for them, in which it writes them later.

// SpareCommand is what the command line of a serving process says that has no
// volume yet; serveCommand, as long, what it says then.
const (
	SpareCommand = "spare"
	serveCommand = "serve"
)

const titleBytes = 1024

// titleRoom is the last argument of such a process.
var titleRoom = strings.Repeat(" ", titleBytes)

// setTitle makes serveCommand the command of this process, and args its last
// arguments, as ps and /proc/PID/cmdline show them. Without room, nothing
// changes; what is too long is cut off.
func setTitle(args []string) {
	last := os.Args[len(os.Args)-1]
	if last != titleRoom {
		return
	}
	room := argumentBytes(last)
	clear(room[copy(room, strings.Join(args, "\x00")):])
	room[len(room)-1] = 0
	if os.Args[1] == SpareCommand {
		copy(argumentBytes(os.Args[1]), serveCommand)
	}
}

// argumentBytes is where an argument of this process lies: the kernel has put
// it into writable memory, and the runtime has not copied it.
func argumentBytes(arg string) []byte { return unsafe.Slice(unsafe.StringData(arg), len(arg)) }
