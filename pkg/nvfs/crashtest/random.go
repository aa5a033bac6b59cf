package crashtest

import "fmt"

// paths, numbers and the like are what Decode chooses from: names that exist
// on volume "tree", names that do not, and sizes at every edge.
var (
	paths = []string{"/none", "/small", "/inline", "/page", "/odd", "/plain", "/holes", "/unw", "/suid", "/dir", "/other", "/empty", "/dir/sub",
		"/other/sub", "/other/vacant", "/dir/a", "/dir/b", "/dir/hard", "/other/c", "/dir/sub/deep", "/short", "/long", "/new", "/dir/new", "/empty/new",
		"/new/new", "/other/sub/new", "/dir/sub/new"}
	numbers = []uint64{0, 1, 7, 8, 63, 64, 100, 340, 352, 353, 4000, 4095, 4096, 4097, 5001, 8192, 9000, 12288, 20000, 65536}
)

// Decode makes operations of any bytes, for volume "tree".
func Decode(data []byte, most int) []Op {
	d := decoder{data}
	var ops []Op
	for len(d.data) > 0 && len(ops) < most {
		ops = append(ops, Op(d.op()))
	}
	return ops
}

type decoder struct{ data []byte }

func (d *decoder) below(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return int(b) % n
}

func (d *decoder) path() string { return paths[d.below(len(paths))] }
func (d *decoder) num() uint64  { return numbers[d.below(len(numbers))] }

func (d *decoder) op() string {
	switch d.below(22) {
	case 0:
		return fmt.Sprintf("create %s", d.path())
	case 1:
		return fmt.Sprintf("mkdir %s", d.path())
	case 2:
		return fmt.Sprintf("mknod %s %s", d.path(), [...]string{"fifo", "sock", "char", "block"}[d.below(4)])
	case 3:
		return fmt.Sprintf("symlink %s %d", d.path(), min(d.num()+1, 4095))
	case 4:
		return fmt.Sprintf("link %s %s", d.path(), d.path())
	case 5:
		return fmt.Sprintf("unlink %s", d.path())
	case 6:
		return fmt.Sprintf("rmdir %s", d.path())
	case 7, 8:
		return fmt.Sprintf("rename %s %s %s", d.path(), d.path(), [...]string{"", "", "noreplace", "exchange", "whiteout"}[d.below(5)])
	case 9, 10, 11:
		return fmt.Sprintf("write %s %d %d %s", d.path(), d.num()+d.num(), d.num()+1, [...]string{"", "kill"}[d.below(2)])
	case 12:
		return fmt.Sprintf("truncate %s %d", d.path(), d.num())
	case 13, 14:
		return fmt.Sprintf("fallocate %s %s %d %d", d.path(), [...]string{"alloc", "keep", "punch", "zero", "zerokeep"}[d.below(5)], d.num()+d.num(), d.num()+1)
	case 15:
		return fmt.Sprintf("copy %s %d %s %d %d", d.path(), d.num(), d.path(), d.num(), d.num()+1)
	case 16:
		return fmt.Sprintf("setattr %s %s", d.path(), [...]string{"mode=640", "uid=7", "gid=8 mode=4755", "now", "mtime=9 size=4097", "uid=1 size=10"}[d.below(6)])
	case 17:
		return fmt.Sprintf("setxattr %s user.%c %d", d.path(), 'x'+rune(d.below(2)), d.num())
	case 18:
		return fmt.Sprintf("rmxattr %s user.x", d.path())
	case 19:
		return [...]string{"tmpfile /", "tmpfile /dir", "release"}[d.below(3)]
	case 20:
		return fmt.Sprintf("hold %s", d.path())
	default:
		if d.below(2) == 0 {
			return fmt.Sprintf("linkheld %s", d.path())
		}
		return fmt.Sprintf("writeheld %d %d", d.num(), d.num()+1)
	}
}
