package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// fsckUsage is fsck(8)'s exit code for a wrong command line; the others are
// those of package fsck.
const fsckUsage = 16

// fsckOptions are the flags of `fsck`.
type fsckOptions struct {
	regions regionFlags
	noWrite bool
	repair  bool
	json    bool
	threads int
}

func newFsckCommand() *cobra.Command {
	var opt fsckOptions
	cmd := &cobra.Command{
		Use:   "fsck [-n|--repair] [--json] [--threads N] PATH [PATH2...]",
		Short: "Check and repair an NVFS volume",
		Long: "fsck checks the NVFS volume on PATH, a devdax device, a file or the name of a\n" +
			"namespace, which must not be mounted; PATH2 and so on are its further devices, if\n" +
			"it has any, in any order. It writes nothing, unless --repair is given:\n" +
			"then it repairs what it finds, by fixed rules. What cannot be kept is given up and\n" +
			"reported; what has lost its name is put into lost+found. An interrupted repair is\n" +
			"completed by the next. Copy a volume of value before it is repaired.\n\n" +
			"Exit code: 0 clean, 1 errors were found and all repaired, 4 errors are left, 8 the\n" +
			"check could not run, 16 wrong command line.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opt.run(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&opt.noWrite, "no-write", "n", false, "check only (the default)")
	flags.BoolVar(&opt.repair, "repair", false, "repair what is found")
	flags.BoolVar(&opt.json, "json", false, "print the report as JSON")
	flags.IntVar(&opt.threads, "threads", 0, "threads that work at a time (default: one for each CPU)")
	cmd.MarkFlagsMutuallyExclusive("no-write", "repair")
	opt.regions.addTo(cmd)
	return cmd
}

func (o *fsckOptions) run(ctx context.Context, out io.Writer, args []string) error {
	report, err := o.check(ctx, args)
	if err != nil {
		return &exitError{code: fsck.ExitCouldNot, err: err}
	}
	if o.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = printReport(out, args[0], report)
	}
	if err != nil {
		return &exitError{code: fsck.ExitCouldNot, err: err}
	}
	if code := report.ExitCode(); code != fsck.ExitClean {
		return &exitError{code: code}
	}
	return nil
}

// check checks the volume on the devices that the arguments name, its first one
// first.
func (o *fsckOptions) check(ctx context.Context, args []string) (report *fsck.Report, err error) {
	var paths []string
	var emulated bool
	for _, arg := range args {
		b, err := o.regions.resolve(ctx, arg)
		if err != nil {
			return nil, err
		}
		paths, emulated = append(paths, b.path), emulated || b.emulated
	}
	var mapping *pmem.Mapping
	err = awaitLetGo(ctx, paths[0], func() (err error) {
		mapping, err = nvfs.OpenDevices(paths[0], paths[1:], nvfs.OpenOptions{
			Options: pmem.Options{ReadOnly: !o.repair, Emulated: emulated}, Damaged: true,
		})
		return err
	})
	if errors.Is(err, pmem.ErrInUse) {
		return nil, fmt.Errorf("%w; a mounted volume cannot be checked: unmount it first", err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mapping.Close()) }()
	return fsck.Check(ctx, mapping, fsck.Options{Threads: o.threads, Repair: o.repair})
}

func printReport(w io.Writer, arg string, r *fsck.Report) error {
	var b strings.Builder
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for _, p := range r.Repairs {
		fmt.Fprintf(&b, "repaired: %s\n", p)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "%s\n", p)
	}
	if hidden := r.Total() - uint64(len(r.Problems)); hidden > 0 {
		fmt.Fprintf(&b, "and %d more\n", hidden)
	}
	verdict := "clean"
	switch {
	case r.Total() > 0 && r.Found != nil:
		verdict = fmt.Sprintf("%d problems could not be repaired; copy what is readable to another volume and make this one anew", r.Total())
	case r.Total() > 0:
		verdict = fmt.Sprintf("%d problems; fsck --repair repairs them", r.Total())
	case r.Found != nil:
		verdict = "repaired, clean now"
	}
	fmt.Fprintf(&b, "%s: %s: %d/%d inodes, %d/%d blocks, %d directories, %.2f s\n",
		arg, verdict, r.Totals.Inodes, r.Totals.InodesMax, r.Totals.BlocksUsed, r.Totals.Blocks, r.Totals.Directories, r.Seconds)
	_, err := io.WriteString(w, b.String())
	return err
}

// fsckHelperArgs turns the command line that fsck(8) gives to fsck.nvfs into
// that of the subcommand. Automatic repair at boot becomes a check: what a
// repair would give up is for a person to decide about.
func fsckHelperArgs(args []string) []string {
	var out []string
	for _, arg := range args {
		switch {
		case arg == "-a" || arg == "-p" || arg == "-f" || strings.HasPrefix(arg, "-C"):
		case arg == "-y":
			out = append(out, "--repair")
		default:
			out = append(out, arg)
		}
	}
	return out
}
