package mountd

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// realSuffix is appended to the path of a test's volume for the file in which
// the volume itself is.
const realSuffix = ".img"

func openImage(path string) (*pmem.Mapping, error) {
	return pmem.Open(path, pmem.Options{Mode: pmem.NT, Emulated: true})
}

// makeVolume makes a real volume.
func makeVolume(t testing.TB, path string) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	must(t, errors.Join(f.Truncate(32<<20), f.Close()))
	space, err := openImage(path)
	must(t, err)
	_, err = mkfs.Format(space, mkfs.Options{})
	must(t, errors.Join(err, space.Close()))
}

// newVolumeOn is a further volume on a test's node.
func newVolumeOn(n *node, id string) Spec {
	n.t.Helper()
	spec := n.spec
	spec.VolumeID = id
	spec.Path = filepath.Join(filepath.Dir(n.spec.Path), id)
	spec.Mountpoint = n.t.TempDir()
	must(n.t, os.WriteFile(spec.Path, nil, 0o600))
	return spec
}

// realVolume is the engine on a file; its marker file says what the volume's
// clean mark does.
type realVolume struct {
	testVolume
	fs   *nvfs.FS
	fuse *fuse // nil: none
}

var _ Resumable = (*realVolume)(nil)

// isReal reports whether the volume is one.
func isReal(spec Spec) bool {
	_, err := os.Stat(spec.Path + realSuffix)
	return err == nil
}

// prepareTestVolume maps a real volume that another process serves.
func prepareTestVolume(spec Spec) (io.Closer, error) {
	if !isReal(spec) {
		return nil, nil
	}
	return pmem.Open(spec.Path+realSuffix, pmem.Options{Mode: pmem.NT, Emulated: true, Unlocked: true})
}

func openRealVolume(spec Spec, o OpenOptions) (Volume, error) {
	space, ok := o.Prepared.(*pmem.Mapping)
	var err error
	if ok {
		err = space.Lock()
	} else {
		space, err = openImage(spec.Path + realSuffix)
	}
	if err != nil {
		return nil, err
	}
	fuse, err := openFuse(spec.Path + fuseSuffix)
	if err != nil {
		return nil, errors.Join(err, space.Close())
	}
	var served pmem.Space = space
	if fuse != nil {
		fuse.left.Store(fuse.next.Swap(0))
		served = &mortalSpace{space, fuse}
	}
	fs, err := nvfs.Mount(served, nvfs.Options{Resume: o.Resume, OnOrphan: o.OnOrphan})
	if err != nil {
		return nil, errors.Join(err, space.Close())
	}
	return &realVolume{testVolume: testVolume{space: space, path: spec.Path}, fs: fs, fuse: fuse}, nil
}

func (v *realVolume) NewWorker() (fusefs.Worker, error) {
	w, err := v.fs.NewWorker()
	if err != nil || v.fuse == nil {
		return w, err
	}
	return mortalWorker{w, v.fuse}, nil
}
func (v *realVolume) Close() error                       { return errors.Join(v.fs.Unmount(), v.testVolume.Close()) }
func (v *realVolume) EndResume() error                   { return v.fs.EndResume() }
func (v *realVolume) Orphans() ([]nvfs.NodeID, error)    { return v.fs.Orphans() }
func (v *realVolume) ReleaseOrphan(id nvfs.NodeID) error { return v.fs.ReleaseOrphan(id) }
func (v *realVolume) Detach() error                      { v.fs.Detach(); return v.space.Release() }
