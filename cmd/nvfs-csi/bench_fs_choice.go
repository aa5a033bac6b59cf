package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// benchChoice is what a run measures.
type benchChoice struct {
	all      []bench.Filesystem
	variants []string // names of those that only some workloads run on
	leftOut  []string // reasons
}

var (
	// benchMain are measured by every workload.
	benchMain = []string{"auto/through", "auto/through/uring", "null", "null-uring", "ext4", "ext2", "xfs", "btrfs", "tmpfs"}
	// benchFew are what the targets are about.
	benchFew = []string{"auto/through", "auto/through/uring", "null", "null-uring", "ext4", "xfs", "tmpfs"}
)

// benchVariants are measured where flush and cache mode matter.
func benchVariants() []string {
	names := []string{"auto/direct", "auto/direct/uring", "auto/writeback"}
	for _, mode := range pmem.CPUModes() {
		names = append(names, string(mode)+"/through")
	}
	return append(names, "tmpfs-huge")
}

// choose finds the filesystems. One that this machine cannot mount is left out
// when it was not asked for by name.
func (o *benchFSOptions) choose(ctx context.Context, exe string) (benchChoice, error) {
	var c benchChoice
	main, variants := o.filesystems, []string(nil)
	switch {
	case len(main) > 0:
	case o.quick || o.targets:
		main = benchFew
	default:
		main, variants = benchMain, benchVariants()
	}
	for i, name := range append(append([]string{}, main...), variants...) {
		fs, err := benchFilesystem(exe, name)
		if err != nil {
			return c, err
		}
		if loop, ok := fs.(bench.LoopFS); ok {
			if why := loop.Missing(ctx); why != "" && len(o.filesystems) > 0 {
				return c, fmt.Errorf("--filesystems %s: %s", name, why)
			} else if why != "" {
				c.leftOut = append(c.leftOut, name+": "+why)
				continue
			}
		}
		c.all = append(c.all, fs)
		if i >= len(main) {
			c.variants = append(c.variants, fs.Name())
		}
	}
	return c, nil
}

func benchFilesystem(exe, name string) (bench.Filesystem, error) {
	switch name {
	case "ext4", "ext2", "xfs", "btrfs":
		return bench.LoopFS{Type: name}, nil
	case "tmpfs":
		return bench.TmpFS{}, nil
	case "tmpfs-huge":
		return bench.TmpFS{Huge: true}, nil
	case "null":
		return bench.NullFUSE{Exe: exe}, nil
	case "null-uring":
		return bench.NullFUSE{Exe: exe, Transport: "uring"}, nil
	}
	flush, cache, ok := strings.Cut(name, "/")
	cache, transport, _ := strings.Cut(cache, "/")
	if _, err := pmem.ParseMode(flush); !ok || err != nil {
		return nil, fmt.Errorf("--filesystems %s: known are FLUSH/CACHE, FLUSH/CACHE/TRANSPORT, ext4, ext2, xfs, btrfs, tmpfs, tmpfs-huge, null and null-uring", name)
	}
	return bench.NVFS{Exe: exe, Flush: flush, Cache: cache, Transport: transport}, nil
}

// addBenchParams adds the flags that scale the workloads; the values of p are
// the defaults.
func addBenchParams(flags *pflag.FlagSet, p *bench.Params) {
	flags.IntVar(&p.SyncWrites, "sync-writes", p.SyncWrites, "4 KiB O_DSYNC appends on one CPU; unpinned a fifth of them")
	flags.Var(bytesFlag{&p.FileSize}, "file-size", "size of sequential and linear files")
	flags.Var(bytesFlag{&p.RandomSize}, "random-size", "size of the file of random requests, also of fio's single file")
	flags.IntVar(&p.RandomOps, "random-requests", p.RandomOps, "random requests of one job")
	flags.IntVar(&p.Jobs, "jobs", p.Jobs, "fio jobs")
	flags.Var(bytesFlag{&p.JobFileSize}, "job-file-size", "size of the file of each fio job (the reference documents: 128M)")
	flags.DurationVar(&p.Runtime, "runtime", p.Runtime, "length of each run of fio (the reference documents: 60s)")
	flags.IntSliceVar(&p.JobBlocks, "job-blocks", p.JobBlocks, "block sizes of fio by flush mode, in bytes")
	flags.IntVar(&p.ToggleNames, "toggle-names", p.ToggleNames, "names of the directory toggle test (the reference documents: 65536; hard links: ext4 allows 65000)")
	flags.IntVar(&p.ToggleOps, "toggle-operations", p.ToggleOps, "operations of that test (the reference documents: 1048576)")
	flags.IntVar(&p.SmallNames, "small-names", p.SmallNames, "names of the small directory whose speed is compared with the large one's")
	flags.IntVar(&p.LargeNames, "large-names", p.LargeNames, "names of the large directory; half of them exist at a time, each with an inode, of which there is one for 16 KiB of --size")
	flags.IntVar(&p.CreateThreads, "create-threads", p.CreateThreads, "threads that create 10 KiB files (the reference documents: 48)")
	flags.IntVar(&p.CreateFiles, "create-files", p.CreateFiles, "files that they create together (the reference documents: 480000)")
	flags.IntVar(&p.CheckCopies, "fsck-copies", p.CheckCopies, "copies of the small files of the tree that are checked (the reference documents: 100 trees); there is an inode for 16 KiB of --size")
}

// applyQuick gives every parameter that was not set its quick value.
func (o *benchFSOptions) applyQuick(set *pflag.FlagSet) {
	if !o.quick {
		return
	}
	quick := bench.QuickParams()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	addBenchParams(flags, &quick)
	flags.VisitAll(func(f *pflag.Flag) {
		given := set.Lookup(f.Name)
		if !given.Changed {
			return
		}
		// The text of a list is not what its flag takes.
		text := given.Value.String()
		if list, ok := given.Value.(pflag.SliceValue); ok {
			text = strings.Join(list.GetSlice(), ",")
		}
		_ = f.Value.Set(text) // it has been taken already
	})
	o.params = quick
	if !set.Changed("rounds") {
		o.rounds = quickRounds
	}
}

// bytesFlag is a size that a Params keeps.
type bytesFlag struct{ n *int64 }

// String implements pflag.Value.
func (b bytesFlag) String() string {
	if b.n == nil {
		return ""
	}
	return strconv.FormatInt(*b.n, 10)
}

// Type implements pflag.Value.
func (bytesFlag) Type() string { return "size" }

// Set implements pflag.Value.
func (b bytesFlag) Set(text string) error {
	n, err := parseSize(text)
	if err != nil {
		return err
	}
	*b.n = int64(n)
	return nil
}
