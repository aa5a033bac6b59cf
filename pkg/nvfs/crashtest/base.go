package crashtest

import (
	"fmt"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// Base is a prepared volume that cases begin from.
type Base struct {
	Name string
	// Size of the volume in bytes, and of the device once it was prepared.
	Size, Grown uint64
	// Second says that there is a further device, which the volume may grow
	// onto.
	Second  bool
	Prepare []Op

	content *record.Base
}

// Bases are the prepared volumes by their name.
var Bases = func() map[string]*Base {
	m := map[string]*Base{}
	for _, b := range []*Base{
		{Name: "tree", Size: 16 << 20, Prepare: Ops(tree)},
		{Name: "wide", Size: 16 << 20, Prepare: Ops(wide())},
		{Name: "fragments", Size: 16 << 20, Prepare: Ops(fragments())},
		{Name: "full", Size: 16 << 20, Prepare: Ops(full)},
		{Name: "growing", Size: 16 << 20, Grown: 17 << 20, Prepare: Ops(small)},
		{Name: "growing-group", Size: 130 << 20, Grown: 150 << 20, Prepare: Ops(small)},
		{Name: "second-device", Size: 16 << 20, Second: true, Prepare: Ops(small)},
		{Name: "two-devices", Size: 16 << 20, Second: true, Prepare: Ops("growonto; " + twoDevices)},
		{Name: "common", Size: 16 << 20, Prepare: Ops(common())},
	} {
		m[b.Name] = b
	}
	return m
}()

// tree has one of everything that operations tell apart.
const tree = `
	mkdir /dir; mkdir /other; mkdir /empty; mkdir /dir/sub; mkdir /other/sub; mkdir /other/vacant;
	create /none; create /small; write /small 0 100; create /inline; write /inline 0 340;
	create /page; write /page 0 4096; setxattr /page user.x 5000; setxattr /small user.x 50;
	create /odd; write /odd 0 10000; link /odd /dir/hard; create /plain; write /plain 0 9000;
	create /holes; write /holes 0 4096; write /holes 8192 4096; write /holes 16384 4096; write /holes 24576 4096;
	create /unw; fallocate /unw alloc 0 32768;
	create /suid 6755; setxattr /suid security.capability 20;
	create /dir/a; write /dir/a 0 20; create /dir/b; write /dir/b 0 5000; create /other/c; write /other/c 0 30;
	create /dir/sub/deep; symlink /short 9; symlink /long 1000`

// small is little, for volumes whose size is what matters.
const small = `mkdir /dir; create /dir/a; write /dir/a 0 5000; create /b; write /b 0 100`

// Where the further device lies, and how many bytes it has.
const (
	secondDevice = layout.GroupBlocks * layout.BlockSize
	secondSize   = 16 << 20
)

// twoDevices is more than one device holds.
const twoDevices = `mkdir /dir; create /dir/a; write /dir/a 0 5000; create /b; write /b 0 100; create /far; fallocate /far alloc 0 10000000; write /far 9990000 10000; setxattr /b user.x 5000`

// full has no block left but the reserve, and some that can be freed.
const full = `
	mkdir /dir; create /small; write /small 0 100; create /page; write /page 0 4096; setxattr /page user.x 5000;
	create /holes; write /holes 0 4096; write /holes 8192 4096; write /holes 16384 4096; write /holes 24576 4096; write /holes 32768 4096;
	create /odd; write /odd 0 10000; create /filler; fill /filler`

// longName is a name of which a leaf holds 18.
func longName(i int) string { return fmt.Sprintf("%03d", i) + strings.Repeat("n", 200) }

// wide has a directory whose only leaf is full, and one with several leaves.
func wide() string {
	var b strings.Builder
	b.WriteString("mkdir /leaf; mkdir /split; create /some; ")
	for i := range 18 {
		fmt.Fprintf(&b, "create /leaf/%s; ", longName(i))
	}
	for i := range 22 {
		fmt.Fprintf(&b, "create /split/%s; ", longName(i))
	}
	return b.String()
}

// workers is how many work at once on volume "common".
const workers = 4

// common has a directory for each worker and one for all of them.
func common() string {
	var b strings.Builder
	b.WriteString("mkdir /common; ")
	for w := range workers {
		fmt.Fprintf(&b, "mkdir /w%d; create /common/w%d-a; write /common/w%d-a 0 5000; create /w%d/b; ", w, w, w, w)
	}
	return b.String()
}

// fragments has a file of more extents than one record frees.
func fragments() string {
	var b strings.Builder
	b.WriteString("create /a; create /b; ")
	for i := range 520 {
		fmt.Fprintf(&b, "fallocate /a alloc %d 4096; ", i*8192)
	}
	b.WriteString("setxattr /a user.x 5000")
	return b.String()
}

// prepare makes the volume, once.
func (b *Base) prepare() error {
	if b.content != nil {
		return nil
	}
	space := record.New(b.Size, max(b.Size, b.Grown))
	if b.Second {
		space = record.New(b.Size, secondDevice+secondSize)
		space.Attach(secondDevice, secondSize)
	}
	if err := format(space); err != nil {
		return err
	}
	space.Freeze()
	var c clock
	v, err := mount(space, c.now, 1, newBuffers())
	if err != nil {
		return err
	}
	s := newSession(v, 0, &c)
	for _, op := range b.Prepare {
		if err := s.run(op); err != nil {
			return fmt.Errorf("prepare volume %q: %w", b.Name, err)
		}
		if s.errno != 0 {
			return fmt.Errorf("prepare volume %q: %s: %w", b.Name, op, s.errno)
		}
	}
	if err := v.unmount(); err != nil {
		return err
	}
	if _, err := check(space); err != nil {
		return fmt.Errorf("prepare volume %q: %w", b.Name, err)
	}
	if found := space.Lint(); len(found) > 0 {
		return fmt.Errorf("prepare volume %q: %v", b.Name, found)
	}
	if b.Grown != 0 {
		space.Resize(b.Grown)
	}
	b.content = space.Freeze()
	return nil
}
