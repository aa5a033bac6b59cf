package nvfs_test

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// readOnlySpace refuses stores.
type readOnlySpace struct{ *recorder }

func (s readOnlySpace) ReadOnly() bool { return true }
func (s readOnlySpace) NewPersister() pmem.Persister {
	return s.recorder.NewPersister()
}

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
	b := newCrashBase(t, 16<<20, prepareTree)
	o, err := b.record(&crashCase{name: "unlink", run: func(m *mounted) error { return m.Unlink(nvfs.RootID, []byte("big")) }}, []survivors{allSurvive})
	if err != nil {
		t.Fatal(err)
	}
	space := b.rec.sibling(false)
	m, err := mountReadOnly(readOnlySpace{space})
	if err != nil {
		t.Fatal(err)
	}
	if dump, err := m.dump(); err != nil || dump != b.before {
		t.Fatalf("%v\n%s", err, diffLines(dump, b.before))
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
	if len(space.touched) > 0 {
		t.Errorf("%d pages were stored to", len(space.touched))
	}

	pending := 0
	for _, img := range o.images {
		space.load(img.image)
		m, err := mountReadOnly(readOnlySpace{space})
		if errors.Is(err, nvfs.ErrNeedsRecovery) {
			pending++
			if m, err = mountReadOnly(space); err != nil { // here recovery may store
				t.Fatal(err)
			}
		} else if err != nil {
			t.Fatal(err)
		}
		if dump, err := m.dump(); err != nil || o.legal(m, dump) != nil {
			t.Errorf("crash %s: %v\n%s", img.how, err, diffLines(dump, b.before))
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
