package nvfs_test

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// readOnlySpace refuses stores.
type readOnlySpace struct{ *record.Space }

func (s readOnlySpace) ReadOnly() bool { return true }

// mountReadOnly mounts without a change being possible.
func mountReadOnly(space pmem.Space) (*mounted, error) {
	fs, err := nvfs.Mount(space, nvfs.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	w, err := fs.NewWorker()
	if err != nil {
		return nil, err
	}
	w.Begin(&nvfs.Request{})
	return &mounted{Worker: w, fs: fs, space: space}, nil
}

// TestReadOnly reads a volume without a store, refuses changes, and refuses
// to mount what only a recovery could make sound.
func TestReadOnly(t *testing.T) {
	p := newPrepared(t, 16<<20)
	images, after, err := p.interrupted(func(m *mounted) error { return m.Unlink(nvfs.RootID, []byte("big")) })
	if err != nil {
		t.Fatal(err)
	}
	space := p.base.NewSpace()
	space.AtStore(func() { t.Error("a read-only volume was stored to") })
	m, err := mountReadOnly(readOnlySpace{space})
	if err != nil {
		t.Fatal(err)
	}
	if dump, err := m.dump(); err != nil || dump != p.before {
		t.Fatalf("%v\n%s", err, diffLines(dump, p.before))
	}
	m.totals()
	var a nvfs.Attr
	for name, err := range map[string]error{
		"create":    m.Mknod(nvfs.RootID, []byte("new"), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0644}, &a),
		"unlink":    m.Unlink(nvfs.RootID, []byte("big")),
		"rename":    m.Rename(nvfs.RootID, []byte("big"), nvfs.RootID, []byte("new"), 0),
		"write":     m.write("big", 0, []byte("x")),
		"truncate":  m.set("big", nvfs.SetAttr{Valid: nvfs.SetSize}),
		"setxattr":  m.SetXattr(m.id("big"), []byte("user.x"), nil, 0),
		"fallocate": m.Fallocate(m.id("big"), 0, 0, 1),
		"link":      m.Link(m.id("big"), nvfs.RootID, []byte("new"), &a),
	} {
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.fs.Grow(); !errors.Is(err, syscall.EROFS) {
		t.Errorf("grow: %v", err)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	space.AtStore(nil)

	pending := 0
	for _, img := range images {
		space.Load(img)
		m, err := mountReadOnly(readOnlySpace{space})
		if errors.Is(err, nvfs.ErrNeedsRecovery) {
			pending++
			if m, err = mountReadOnly(space); err != nil { // here recovery may store
				t.Fatal(err)
			}
		} else if err != nil {
			t.Fatal(err)
		}
		if dump, err := m.dump(); err != nil || dump != p.before && dump != after {
			t.Errorf("crash at %s: %v\n%s", img, err, diffLines(dump, p.before))
		}
		if _, err := m.create(nvfs.RootID, "new", unix.S_IFREG|0644); !errors.Is(err, syscall.EROFS) {
			t.Error(err)
		}
		m.End()
		m.Close()
		if err := m.fs.Unmount(); err != nil {
			t.Fatal(err)
		}
	}
	if pending == 0 {
		t.Error("no crash image needed a recovery")
	}
}

// interrupted runs an operation and returns what power cuts in the middle of
// it may leave, and the dump of what it comes to.
func (p *prepared) interrupted(run func(*mounted) error) (images []*record.Image, after string, err error) {
	p.space.Reset()
	m, err := tryMount(p.space, p.clock.now)
	if err != nil {
		return nil, "", err
	}
	m.totals()
	p.space.Record()
	err = run(m)
	trace := p.space.Stop()
	if err != nil {
		return nil, "", err
	}
	trace.Images(record.ADR, record.Options{Subsets: 2}, func(img *record.Image) bool {
		images = append(images, img)
		return true
	})
	if after, err = m.dump(); err != nil {
		return nil, "", err
	}
	return images, after, m.unmount()
}
