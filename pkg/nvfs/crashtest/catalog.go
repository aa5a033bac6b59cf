package crashtest

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Singles are operations on volume "tree" of every kind and edge, each of
// which does something there.
var Singles = Ops(`
	create /new; create /empty/new; mkdir /dir/new; mknod /new fifo; mknod /new char; symlink /new 6; symlink /new 3000;
	link /page /dir/new; link /odd /empty/new; tmpfile /dir;
	unlink /small; unlink /page; unlink /holes; unlink /odd; unlink /suid; unlink /long; unlink /dir/sub/deep;
	rmdir /other/vacant; rmdir /empty;
	rename /small /new; rename /dir/a /other/new; rename /small /page; rename /dir/b /other/c; rename /small /dir/hard;
	rename /dir/sub /other/new; rename /dir/sub /other/vacant; rename /none /empty/new noreplace;
	rename /small /page exchange; rename /dir/sub /other/c exchange; rename /dir/sub /other/sub exchange;
	rename /dir/a /other/c whiteout; rename /dir/a /new whiteout; rename /dir /empty;
	write /small 50 200; write /none 0 10001; write /inline 330 5000; write /inline 9000 100; write /page 4096 4096;
	write /odd 10000 7001; write /odd 10001 13; write /odd 30003 77; write /holes 4196 50; write /holes 4096 4096; write /unw 5017 9000;
	write /plain 3 9000; write /plain 4096 4096; write /plain 5001 9000; write /holes 5 20000; write /suid 0 5000 kill;
	truncate /small 40; truncate /small 200; truncate /small 1073741824; truncate /odd 20000; truncate /plain 5001; truncate /plain 0; truncate /holes 9000;
	setattr /suid mode=700 uid=5 gid=6 size=77 mtime=5; setattr /suid uid=5; setattr /dir mode=1777; setattr /page mtime=77 atime=78; setattr /short now;
	fallocate /odd alloc 0 30000; fallocate /small alloc 0 30000; fallocate /holes keep 0 60000; fallocate /plain punch 101 8000;
	fallocate /holes punch 0 1099511627776; fallocate /plain zero 100 12001; fallocate /plain zerokeep 4096 4096; fallocate /inline zero 10 20;
	copy /odd 100 /none 0 1048576; copy /odd 0 /plain 5 5000; copy /plain 0 /plain 4096 100;
	setxattr /none user.new 30; setxattr /small user.new 9000; setxattr /page user.x 7000; setxattr /page user.x 7; rmxattr /page user.x; rmxattr /small user.x;
	setxattr /dir user.new 100`)

// Lists are cases of a few operations that belong together.
var Lists = map[string][]string{
	"tree": {
		"tmpfile /dir; linkheld /new",
		"tmpfile /; writeheld 0 5000; linkheld /dir/new; release",
		"tmpfile /; release",
		"hold /page; unlink /page; writeheld 4000 5000; release",
		"hold /odd; unlink /odd; unlink /dir/hard; release",
		"hold /holes; rename /small /holes; release",
		"hold /empty; rmdir /empty; release",
		"truncate /plain 5001; truncate /plain 9000",
		"truncate /plain 5001; write /plain 7000 10",
		"truncate /plain 4097; fallocate /plain alloc 0 9000",
		"truncate /small 10; truncate /small 100",
		"truncate /small 20; copy /small 7 /small 4000 341", // the source gets longer by it
		// A block that is freed and reused at once.
		"unlink /plain; write /none 0 12000",
		"truncate /plain 0; write /none 0 4096; write /plain 0 4096",
		"fallocate /plain punch 0 4096; write /none 0 4096; write /plain 0 4096",
		"setxattr /page user.x 6000; write /none 0 9000; setxattr /page user.x 5000",
		"rmdir /other/vacant; mkdir /new; create /new/a; unlink /new/a; rmdir /new",
		"unlink /dir/sub/deep; create /dir/sub/deep; write /dir/sub/deep 0 5000",
		"write /none 0 600000",
		"write /small 90 700000",
		"copy /plain 0 /none 0 600000; copy /none 0 /odd 9 600000",
	},
	"wide": {
		"create /leaf/" + longName(100), "mkdir /leaf/" + longName(101), "rename /some /leaf/" + longName(102),
		"link /some /leaf/" + longName(103), "symlink /leaf/" + longName(104) + " 2000",
		"rename /leaf/" + longName(3) + " /split/" + longName(105),
		"rename /leaf/" + longName(3) + " /leaf/" + longName(106),
		"rename /some /leaf/" + longName(107) + " whiteout",
		"unlink /split/" + longName(5), emptying("/leaf", 18), emptying("/split", 22),
	},
	"fragments": {
		"truncate /a 0", "truncate /a 500005", "unlink /a", "rename /b /a", "fallocate /a punch 5 10000000", "fallocate /a punch 4096 3000000",
		"fallocate /a zero 5 4255744", "fallocate /a alloc 0 5000000", "setattr /a size=0 mode=600 uid=3", "hold /a; unlink /a; release",
	},
	"full": {
		"write /small 0 5000", "write /odd 10000 9000", "write /holes 4096 4096", "create /new", "mkdir /dir/new; create /dir/new/a", "symlink /new 3000",
		"unlink /holes", "unlink /filler", "truncate /holes 0", "truncate /odd 4097", "fallocate /holes punch 8192 4096",
		"fallocate /odd zero 0 9000", "setxattr /small user.x 9000", "setxattr /page user.x 4000", "rmxattr /page user.x", "fallocate /odd alloc 0 900000",
		"unlink /odd; write /small 0 8000", "unlink /odd; fallocate /small alloc 0 8000; write /small 4000 100", "fallocate /filler punch 0 8192; write /odd 10000 9000",
		"write /none 0 5000; hold /page; unlink /page; release", "rename /odd /holes", "copy /odd 0 /small 0 9000", "tmpfile /; writeheld 0 5000; release",
	},
	"growing":       {"grow", "grow; write /b 0 9000; unlink /dir/a", "write /b 0 9000; grow; create /new"},
	"growing-group": {"grow", "grow; write /b 0 9000"},
	"second-device": {"growonto", "growonto; create /c; fallocate /c alloc 0 9000000; write /c 8000000 9000", "write /b 0 9000; growonto; unlink /dir/a"},
	"two-devices": {"unlink /far", "create /c; fallocate /c alloc 0 6000000; write /c 5000000 9000", "truncate /far 5000; create /dir/c",
		"rename /far /b", "copy /far 9990000 /b 0 10000", "fallocate /far punch 4096 9000000; write /b 0 9000"},
}

func emptying(dir string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "unlink %s/%s;", dir, longName(i))
	}
	return b.String()
}

// Alone makes a case of each operation.
func Alone(base string, ops []Op) []Case {
	var cases []Case
	for _, op := range ops {
		cases = append(cases, Case{Base: base, Ops: []Op{op}})
	}
	return cases
}

// Listed makes a case of each list.
func Listed(base string) []Case {
	var cases []Case
	for _, list := range Lists[base] {
		cases = append(cases, Case{Base: base, Ops: Ops(list)})
	}
	return cases
}

// Pairs makes a case of each pair of operations, of which the second is
// interrupted.
func Pairs(base string, ops []Op, workers int) []Case {
	var cases []Case
	for _, a := range ops {
		for _, b := range ops {
			cases = append(cases, Case{Base: base, Ops: []Op{a, b}, From: 2, Workers: workers})
		}
	}
	return cases
}

// Sequences makes n cases of length operations that rnd chooses, the last of
// which is interrupted.
func Sequences(base string, ops []Op, n, length int, rnd *rand.Rand) []Case {
	var cases []Case
	for range n {
		c := Case{Base: base, From: length, Workers: 1 + rnd.IntN(2)}
		for range length {
			c.Ops = append(c.Ops, ops[rnd.IntN(len(ops))])
		}
		cases = append(cases, c)
	}
	return cases
}
