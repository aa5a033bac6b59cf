package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// copied is where a workload puts its copy of a tree.
func (r *Run) copied() string { return filepath.Join(r.Dir, "tree") }

// copy copies a tree with cp -a; synced includes making it durable.
func (r *Run) copy(ctx context.Context, src Tree) (copied, synced float64, err error) {
	if copied, err = r.seconds(func() error { return run(ctx, "cp", "-a", src.Dir, r.copied()) }); err != nil {
		return 0, 0, err
	}
	sync, err := r.seconds(func() error { return syncFilesystem(r.Dir) })
	return copied, copied + sync, err
}

// search reads the copy twice: without any cache of the filesystem, where it
// can lose it, and from the cache.
func (r *Run) search(ctx context.Context) (cold, cached float64, err error) {
	isCold, err := r.remount(ctx)
	if err != nil {
		return 0, 0, err
	}
	search := func() error { return searchTree(ctx, r.copied()) }
	if cold, err = r.seconds(search); err != nil {
		return 0, 0, err
	}
	if !isCold {
		cold = notApplicable
	}
	cached, err = r.seconds(search)
	return cold, cached, err
}

// copyTree is the whole life of a tree: copied, made durable, searched,
// removed.
func copyTree(tree Tree, pinned bool) Workload {
	what := fmt.Sprintf("%d files, %s", tree.Files, FormatSize(tree.Bytes))
	return Workload{Group: "tree", Pinned: pinned, Target: true,
		Rows: []Row{
			{"tree-copy", "cp -a, " + what, "s", lower},
			{"tree-copy-sync", "cp -a and sync, " + what, "s", lower},
			{"tree-grep-cold", "grep -r cold, " + what, "s", lower},
			{"tree-grep-cached", "grep -r from cache, " + what, "s", lower},
			{"tree-remove", "rm -rf, " + what, "s", lower},
		},
		run: func(ctx context.Context, r *Run) ([]float64, error) {
			copied, synced, err := r.copy(ctx, tree)
			if err != nil {
				return nil, err
			}
			cold, cached, err := r.search(ctx)
			if err != nil {
				return nil, err
			}
			removed, err := r.seconds(func() error { return os.RemoveAll(r.copied()) })
			return []float64{copied, synced, cold, cached, removed}, err
		}}
}

func copySmallFiles(tree Tree) Workload { return copyPart(tree, "small", "small files") }

func copyLargeFiles(tree Tree) Workload { return copyPart(tree, "large", "large files") }

// copyPart gives the throughput of one kind of files.
func copyPart(tree Tree, id, kind string) Workload {
	what := fmt.Sprintf("%d %s, %s", tree.Files, kind, FormatSize(tree.Bytes))
	return Workload{Group: "tree", MaxRounds: 2,
		Rows: []Row{
			{id + "-write", "cp -a, " + what, "MB/s", higher},
			{id + "-write-sync", "cp -a and sync, " + what, "MB/s", higher},
			{id + "-read-cold", "read cold (grep -r), " + what, "MB/s", higher},
			{id + "-read-cached", "read from cache (grep -r), " + what, "MB/s", higher},
		},
		run: func(ctx context.Context, r *Run) ([]float64, error) {
			copied, synced, err := r.copy(ctx, tree)
			if err != nil {
				return nil, err
			}
			cold, cached, err := r.search(ctx)
			var values []float64
			for _, seconds := range []float64{copied, synced, cold, cached} {
				values = append(values, megabytes(tree.Bytes, seconds))
			}
			return values, err
		}}
}

// copyBetween copies a tree from one volume to another of the same kind.
func copyBetween(tree Tree) Workload {
	what := fmt.Sprintf("between two volumes, %d files, %s", tree.Files, FormatSize(tree.Bytes))
	return Workload{Group: "between", MaxRounds: 1,
		Rows: []Row{
			{"between-copy", "cp -r " + what, "s", lower},
			{"between-copy-sync", "cp -r and sync " + what, "s", lower},
		},
		run: func(ctx context.Context, r *Run) (values []float64, err error) {
			if _, _, err := r.copy(ctx, tree); err != nil {
				return nil, err
			}
			other, err := r.second(ctx)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, other.Unmount(context.WithoutCancel(ctx))) }()
			to := filepath.Join(other.Dir, "tree")
			copied, err := r.seconds(func() error { return run(ctx, "cp", "-r", r.copied(), to) })
			if err != nil {
				return nil, err
			}
			sync, err := r.seconds(func() error { return syncFilesystem(other.Dir) })
			return []float64{copied, copied + sync}, err
		}}
}
