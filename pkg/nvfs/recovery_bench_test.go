package nvfs_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// The volume of BenchmarkRecovery.
const (
	recoveryFiles   = 1_000_000
	recoveryPerDir  = 1000
	recoveryWorkers = 8
	recoveryOrphans = 1000
)

// crashSpace loses what comes after a given fence, as a power cut does, for
// the Persisters made after it was armed.
type crashSpace struct {
	*pmem.Mapping
	fences int
}

type crashPersister struct {
	pmem.Persister
	left int
}

func (s *crashSpace) NewPersister() pmem.Persister {
	return &crashPersister{s.Mapping.NewPersister(), s.fences}
}

func (p *crashPersister) dead() bool { return p.left <= 0 }

func (p *crashPersister) Store64(off, v uint64) {
	if !p.dead() {
		p.Persister.Store64(off, v)
	}
}

func (p *crashPersister) Copy(off uint64, src []byte) {
	if !p.dead() {
		p.Persister.Copy(off, src)
	}
}

func (p *crashPersister) Zero(off, n uint64) {
	if !p.dead() {
		p.Persister.Zero(off, n)
	}
}

func (p *crashPersister) Fence() error {
	p.left--
	return p.Persister.Fence()
}

// BenchmarkRecovery mounts a volume with a million files after a clean
// unmount, and after a crash with a record to be replayed in each of the
// journal slots of eight workers and with a thousand deleted files to be
// released; also until the totals are known. Run it with -benchtime 1x: a
// round takes seconds.
func BenchmarkRecovery(b *testing.B) {
	space, err := pmem.NewMemory(5 << 30) // an inode for each 4 KiB
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = space.Close() })
	format(b, space, mkfs.Options{BytesPerInode: 4096})
	fillMillion(b, space)
	var clean, crashed, cleanTotals, crashedTotals time.Duration
	for b.Loop() {
		mount, totals := timeMount(b, space)
		clean, cleanTotals = clean+mount, cleanTotals+totals
		crashMount(b, space)
		mount, totals = timeMount(b, space)
		crashed, crashedTotals = crashed+mount, crashedTotals+totals
	}
	n := float64(b.N) * 1e3
	b.ReportMetric(float64(clean.Nanoseconds())/n, "us/mount-clean")
	b.ReportMetric(float64(crashed.Nanoseconds())/n, "us/mount-crashed")
	b.ReportMetric(float64(cleanTotals.Nanoseconds())/n, "us/totals-clean")
	b.ReportMetric(float64(crashedTotals.Nanoseconds())/n, "us/totals-crashed")
}

func fillMillion(b *testing.B, space pmem.Space) {
	m := mount(b, space, nil)
	for d := range recoveryFiles / recoveryPerDir {
		dir, err := m.create(nvfs.RootID, fmt.Sprintf("dir-%d", d), unix.S_IFDIR|0755)
		if err != nil {
			b.Fatal(err)
		}
		for f := range recoveryPerDir {
			if _, err := m.create(dir, fmt.Sprintf("file-%d", f), unix.S_IFREG|0644); err != nil {
				b.Fatal(err)
			}
		}
	}
	m.End()
	m.Close()
	if err := m.fs.Unmount(); err != nil {
		b.Fatal(err)
	}
}

// timeMount returns how long a mount takes, and until the totals are known.
func timeMount(b *testing.B, space pmem.Space) (mount, totals time.Duration) {
	b.Helper()
	began := time.Now()
	fs, err := nvfs.Mount(space, nvfs.Options{})
	if err != nil {
		b.Fatal(err)
	}
	mount = time.Since(began)
	w, err := fs.NewWorker()
	if err != nil {
		b.Fatal(err)
	}
	var s nvfs.StatFS
	if err := w.StatFS(&s); err != nil {
		b.Fatal(err)
	}
	totals = time.Since(began)
	w.Close()
	if err := fs.Unmount(); err != nil {
		b.Fatal(err)
	}
	return mount, totals
}

// crashMount leaves the volume as a process does that is killed: deleted files
// not released, and of each worker a record that is complete, but not carried
// out.
func crashMount(b *testing.B, space *pmem.Mapping) {
	b.Helper()
	const forever = 1 << 30
	s := &crashSpace{Mapping: space, fences: forever}
	fs, err := nvfs.Mount(s, nvfs.Options{})
	if err != nil {
		b.Fatal(err)
	}
	w, err := fs.NewWorker()
	if err != nil {
		b.Fatal(err)
	}
	w.Begin(&nvfs.Request{})
	for range recoveryOrphans {
		var a nvfs.Attr // never forgotten, so never released
		if err := w.Tmpfile(nvfs.RootID, &nvfs.CreateArgs{Mode: unix.S_IFREG | 0600}, &a); err != nil {
			b.Fatal(err)
		}
	}
	w.End()
	var dirs [recoveryWorkers]nvfs.Attr
	for i := range dirs { // each worker changes a directory of its own
		if err := w.Lookup(nvfs.RootID, fmt.Appendf(nil, "dir-%d", i), &dirs[i]); err != nil {
			b.Fatal(err)
		}
	}
	s.fences = 1 // of later workers only the record gets to the medium
	for i := range dirs {
		late, err := fs.NewWorker()
		if err != nil {
			b.Fatal(err)
		}
		late.Begin(&nvfs.Request{})
		mode := nvfs.SetAttr{Valid: nvfs.SetMode, Mode: 0700}
		if err := late.SetAttr(dirs[i].ID, &mode, &nvfs.Attr{}); err != nil {
			b.Fatal(err)
		}
		late.End()
	}
	// The FS is left as it is: nothing of it stores any more.
}
