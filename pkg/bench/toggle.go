package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ToggleKind is what the names of a toggle test are.
type ToggleKind string

// The kinds.
const (
	ToggleFiles       ToggleKind = "files"
	ToggleLinks       ToggleKind = "hard links"
	ToggleDirectories ToggleKind = "directories"
)

// ToggleKinds are all of them.
var ToggleKinds = []ToggleKind{ToggleFiles, ToggleLinks, ToggleDirectories}

// ToggleTest works on random names of one directory: a name that is absent is
// created, one that is present is deleted.
type ToggleTest struct {
	Kind       ToggleKind
	Names      int // that are drawn from
	Operations int // that are timed
	CPU        int // AnyCPU or where it runs
}

// ToggleResult is what a test did.
type ToggleResult struct {
	Created, Deleted int
	Present          int // names in the end
	Elapsed          time.Duration
}

// Run runs the test in dir, an empty directory. Half of the names are created
// beforehand, so that from the first timed operation on, as many are created as
// deleted. In the end the directory is read and compared with what must be
// there; neither is timed. The entries stay.
func (t ToggleTest) Run(ctx context.Context, dir string) (ToggleResult, error) {
	d, err := openToggleDir(t, dir)
	if err != nil {
		return ToggleResult{}, err
	}
	defer d.close()
	if err := d.fill(ctx); err != nil {
		return ToggleResult{}, err
	}
	err = onCPU(t.CPU, func() error {
		begin := time.Now()
		err := d.toggle(ctx, t.Operations)
		d.result.Elapsed = time.Since(begin)
		return err
	})
	if err != nil {
		return ToggleResult{}, err
	}
	return d.result, d.verify(dir)
}

// toggleDir is the directory under test.
type toggleDir struct {
	kind    ToggleKind
	fd      int
	target  string // what hard links lead to, outside the directory
	present []bool
	rng     *rand.Rand
	result  ToggleResult
}

func openToggleDir(t ToggleTest, dir string) (*toggleDir, error) {
	d := &toggleDir{kind: t.Kind, present: make([]bool, t.Names), rng: rand.New(rand.NewPCG(1, uint64(t.Names)))}
	if t.Kind == ToggleLinks {
		d.target = dir + ".target"
		if err := os.WriteFile(d.target, nil, 0o600); err != nil {
			return nil, err
		}
	}
	var err error
	if d.fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return d, nil
}

func (d *toggleDir) close() {
	unix.Close(d.fd)
	if d.target != "" {
		os.Remove(d.target)
	}
}

func (d *toggleDir) fill(ctx context.Context) error {
	for i := range d.present {
		if i%64 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if i%2 == 0 {
			if err := d.create(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *toggleDir) toggle(ctx context.Context, operations int) error {
	for n := range operations {
		if n%64 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		i := d.rng.IntN(len(d.present))
		var err error
		if d.present[i] {
			err = d.delete(i)
			d.result.Deleted++
		} else {
			err = d.create(i)
			d.result.Created++
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// toggleName looks like the names of a source tree: not sorted by number.
func toggleName(i int) string { return "name-" + strconv.FormatUint(uint64(i)*2654435761%(1<<32), 16) }

func (d *toggleDir) create(i int) error {
	name := toggleName(i)
	var err error
	switch d.kind {
	case ToggleFiles:
		var fd int
		if fd, err = unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600); err == nil {
			err = unix.Close(fd)
		}
	case ToggleLinks:
		err = unix.Linkat(unix.AT_FDCWD, d.target, d.fd, name, 0)
	case ToggleDirectories:
		err = unix.Mkdirat(d.fd, name, 0o700)
	default:
		err = fmt.Errorf("unknown kind %q", d.kind)
	}
	if err != nil {
		return fmt.Errorf("create %s (%s): %w", name, d.kind, err)
	}
	d.present[i] = true
	d.result.Present++
	return nil
}

func (d *toggleDir) delete(i int) error {
	flags := 0
	if d.kind == ToggleDirectories {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(d.fd, toggleName(i), flags); err != nil {
		return fmt.Errorf("delete %s (%s): %w", toggleName(i), d.kind, err)
	}
	d.present[i] = false
	d.result.Present--
	return nil
}

// verify compares the directory with what was done.
func (d *toggleDir) verify(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	listed := make(map[string]bool, len(names))
	for _, name := range names {
		listed[name] = true
	}
	if len(names) != d.result.Present || len(listed) != len(names) {
		return fmt.Errorf("%s lists %d names, %d of them different, after %d were left in it", dir, len(names), len(listed), d.result.Present)
	}
	for i, present := range d.present {
		if present && !listed[toggleName(i)] {
			return fmt.Errorf("%s does not list %s, which is there", filepath.Clean(dir), toggleName(i))
		}
	}
	return nil
}
