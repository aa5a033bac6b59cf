package nvfs_test

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// errorFlags are those on the medium.
func errorFlags(space *record.Space) uint64 {
	return layout.Dynamic(space.Bytes()[layout.DynamicOffset:][:layout.StaticSize]).Errors()
}

// damagedFile makes a volume with a file whose inode is damaged.
func damagedFile(t *testing.T) (space *record.Space, ino uint64) {
	t.Helper()
	space = newSpace(16 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	id, err := m.create(nvfs.RootID, "damaged", unix.S_IFREG|0644)
	if err != nil {
		t.Fatal(err)
	}
	perGroup := m.fs.Superblock().InodesPerGroup
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	space.Bytes()[layout.InodeOffset(id.Ino(), perGroup)+20] ^= 0x40
	return space, id.Ino()
}

func (m *mounted) meetDamage() error {
	err := m.Lookup(nvfs.RootID, []byte("damaged"), new(nvfs.Attr))
	if !errors.Is(err, syscall.EIO) {
		return errors.Join(errors.New("the damage was not met"), err)
	}
	return nil
}

// Damage that a mount meets is on the medium when the mount ends, the next
// mount says so, and a repair takes it back.
func TestDamageIsNoted(t *testing.T) {
	space, ino := damagedFile(t)
	m := mount(t, space, nil)
	if err := m.meetDamage(); err != nil {
		t.Fatal(err)
	}
	m.End()
	m.Close()
	if err := errors.Join(m.fs.Unmount(), lint(space)); err != nil {
		t.Fatal(err)
	}
	if errorFlags(space) != layout.ErrorCorruption {
		t.Fatalf("error flags %#x", errorFlags(space))
	}
	r, err := fsck.Check(t.Context(), space, fsck.Options{})
	if err != nil || r.Counts[fsck.ErrorFlag] != 1 || r.Counts[fsck.InodeChecksum] != 1 {
		t.Errorf("check: %v, %+v", err, r)
	}
	m = mount(t, space, nil)
	if m.fs.Health() == "" || m.fs.ReadOnly() {
		t.Errorf("health %q, read-only %v", m.fs.Health(), m.fs.ReadOnly())
	}
	m.End()
	m.Close()
	if err := m.fs.Unmount(); err != nil {
		t.Fatal(err)
	}
	if r, err = fsck.Repair(t.Context(), space, fsck.Options{}); err != nil || r.ExitCode() != fsck.ExitRepaired {
		t.Fatalf("repair of inode %d: %v, %+v", ino, err, r)
	}
	if err := lint(space); err != nil {
		t.Errorf("repair: %v", err)
	}
	if m = mount(t, space, nil); m.fs.Health() != "" {
		t.Errorf("health after the repair: %q", m.fs.Health())
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}

// Damage that makes the volume read-only is noted too.
func TestSharedDamageIsNoted(t *testing.T) {
	space := newSpace(16 << 20)
	format(t, space, mkfs.Options{})
	space.Bytes()[(layout.GroupStart(0)+layout.GroupBlockBitmap)*pageSize+20] ^= 1
	m := mount(t, space, nil)
	m.totals()
	if !m.fs.ReadOnly() {
		t.Error("a damaged bitmap leaves the volume writable")
	}
	m.End()
	m.Close()
	if err := errors.Join(m.fs.Unmount(), lint(space)); err != nil {
		t.Fatal(err)
	}
	if errorFlags(space) != layout.ErrorCorruption {
		t.Fatalf("error flags %#x", errorFlags(space))
	}
}

// A mount that only reads does not store.
func TestDamageIsNotNotedReadOnly(t *testing.T) {
	space, _ := damagedFile(t)
	space.AtStore(func() { t.Error("a read-only volume was stored to") })
	m, err := mountReadOnly(space)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.meetDamage(); err != nil {
		t.Fatal(err)
	}
	m.End()
	m.Close()
	if err := m.fs.Unmount(); err != nil {
		t.Fatal(err)
	}
}

// The flag is stored soon, not only when the mount ends: a process that is
// killed leaves it, as whole as any record.
func TestDamageIsNotedAtOnce(t *testing.T) {
	space, _ := damagedFile(t)
	space.Quiet() // so that snapshots may be taken
	base := space.Freeze()
	fences := make(chan struct{}, 100)
	space.AtFence(func() { fences <- struct{}{} })
	m := mount(t, space, nil)
	m.totals()
	for len(fences) > 0 { // of the mount
		<-fences
	}
	if err := m.meetDamage(); err != nil {
		t.Fatal(err)
	}
	for k, step := range []string{"record", "patches", "retire word"} {
		<-fences
		crashed := base.NewSpace()
		crashed.Load(space.Snapshot())
		m, err := tryMount(crashed, nil)
		if err != nil {
			t.Fatalf("ahead of the fence of the %s: %v", step, err)
		}
		if m.fs.Health() == "" {
			t.Errorf("ahead of the fence of the %s: the next mount does not know", step)
		}
		m.End()
		m.Close()
		if err := m.fs.Unmount(); err != nil {
			t.Fatal(k, err)
		}
	}
	m.End()
	m.Close()
	if err := m.fs.Unmount(); err != nil {
		t.Fatal(err)
	}
}
