package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// toggleIDs are the stable names of the rows.
var toggleIDs = map[ToggleKind]string{ToggleFiles: "toggle-files", ToggleLinks: "toggle-links", ToggleDirectories: "toggle-dirs"}

func toggleWorkload(p Params, pinned bool) Workload {
	w := Workload{Group: "directory", Pinned: pinned, Target: true}
	for _, kind := range ToggleKinds {
		w.Rows = append(w.Rows, Row{toggleIDs[kind], fmt.Sprintf("directory toggle, %s, %d names", kind, p.ToggleNames), "us", lower})
	}
	w.run = func(ctx context.Context, r *Run) ([]float64, error) {
		var values []float64
		for _, kind := range ToggleKinds {
			v, err := r.toggle(ctx, ToggleTest{Kind: kind, Names: p.ToggleNames, Operations: p.ToggleOps})
			if err != nil {
				return nil, err
			}
			values = append(values, v)
		}
		return values, nil
	}
	return w
}

// toggleGrowth makes as many operations on a small and on a large directory.
func toggleGrowth(p Params) Workload {
	return Workload{Group: "directory", Pinned: true, MaxRounds: 1, Target: true,
		Rows: []Row{
			{"toggle-small", fmt.Sprintf("directory toggle, files, %d names", p.SmallNames), "us", lower},
			{"toggle-large", fmt.Sprintf("directory toggle, files, %d names", p.LargeNames), "us", lower},
		},
		run: func(ctx context.Context, r *Run) ([]float64, error) {
			var values []float64
			for _, names := range []int{p.SmallNames, p.LargeNames} {
				v, err := r.toggle(ctx, ToggleTest{Kind: ToggleFiles, Names: names, Operations: p.ToggleOps})
				if err != nil {
					return nil, err
				}
				values = append(values, v)
			}
			return values, nil
		}}
}

// toggle runs a test in a directory of its own and returns us an operation.
func (r *Run) toggle(ctx context.Context, t ToggleTest) (float64, error) {
	t.CPU = r.CPU
	dir := filepath.Join(r.Dir, "toggle")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, err
	}
	res, err := t.Run(ctx, dir)
	if err != nil {
		return 0, err
	}
	return micros(res.Elapsed) / float64(t.Operations), os.RemoveAll(dir)
}

// createdSize is the size of the files that fs_mark makes in the reference
// documents.
const createdSize = 10240

// createFiles makes small files in one directory by many threads and syncs
// each of them, as fs_mark does.
func createFiles(p Params) Workload {
	return Workload{Group: "create",
		Rows: []Row{{"create-10k", fmt.Sprintf("create and fsync 10 KiB files, %d threads", p.CreateThreads), "files/s", higher}},
		run: func(ctx context.Context, r *Run) ([]float64, error) {
			each := max(1, p.CreateFiles/p.CreateThreads)
			took, err := r.seconds(func() error {
				group, ctx := errgroup.WithContext(ctx)
				for thread := range p.CreateThreads {
					group.Go(func() error { return createSmallFiles(ctx, r.Dir, thread, each) })
				}
				return group.Wait()
			})
			return []float64{float64(each*p.CreateThreads) / took}, err
		}}
}

func createSmallFiles(ctx context.Context, dir string, thread, count int) error {
	content := make([]byte, createdSize)
	for i := range count {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := createSynced(filepath.Join(dir, fmt.Sprintf("%d-%d", thread, i)), content); err != nil {
			return err
		}
	}
	return nil
}

// createSynced makes plain system calls: os.File would add its own.
func createSynced(name string, content []byte) error {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	err = whole(unix.Write(fd, content))(len(content))
	if err == nil {
		err = unix.Fsync(fd)
	}
	if e := unix.Close(fd); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
