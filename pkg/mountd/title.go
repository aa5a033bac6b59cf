package mountd

import (
	"os"
	"strings"
	"unsafe"
)

// A process that is started before it is known what for cannot show that in
// its arguments, by which people look for it. So it is started with room for
// them, in which it writes them later.

const titleBytes = 1024

// titleRoom is the last argument of such a process.
var titleRoom = strings.Repeat(" ", titleBytes)

// setTitle makes args the last arguments of this process, as ps and
// /proc/PID/cmdline show them. Without room, nothing changes; what is too long
// is cut off.
func setTitle(args []string) {
	last := os.Args[len(os.Args)-1]
	if last != titleRoom {
		return
	}
	// The kernel has put the arguments into memory of the process, and the
	// runtime has not copied them. Nobody else uses this one.
	room := unsafe.Slice(unsafe.StringData(last), len(last))
	clear(room[copy(room, strings.Join(args, "\x00")):])
	room[len(room)-1] = 0
}
