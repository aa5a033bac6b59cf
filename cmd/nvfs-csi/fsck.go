package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

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
		Use:   "fsck [-n|--repair] [--json] [--threads N] PATH",
		Short: "Check an NVFS volume",
		Long: "fsck checks the NVFS volume on PATH, a devdax device, a file or the name of a\n" +
			"namespace, which must not be mounted. It writes nothing.\n\n" +
			"Exit code: 0 clean, 4 errors were found and left, 8 the check could not run, 16\n" +
			"wrong command line. This version cannot repair: --repair is refused.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opt.run(cmd.Context(), cmd.OutOrStdout(), args[0])
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&opt.noWrite, "no-write", "n", false, "check only (always so in this version)")
	flags.BoolVar(&opt.repair, "repair", false, "repair what is found")
	flags.BoolVar(&opt.json, "json", false, "print the report as JSON")
	flags.IntVar(&opt.threads, "threads", 0, "threads that work at a time (default: one for each CPU)")
	cmd.MarkFlagsMutuallyExclusive("no-write", "repair")
	opt.regions.addTo(cmd)
	return cmd
}

func (o *fsckOptions) run(ctx context.Context, out io.Writer, arg string) error {
	report, err := o.check(ctx, arg)
	if err != nil {
		return &exitError{code: fsck.ExitCouldNot, err: err}
	}
	if o.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = printReport(out, arg, report)
	}
	if err != nil {
		return &exitError{code: fsck.ExitCouldNot, err: err}
	}
	if code := report.ExitCode(); code != fsck.ExitClean {
		return &exitError{code: code}
	}
	return nil
}

func (o *fsckOptions) check(ctx context.Context, arg string) (report *fsck.Report, err error) {
	b, err := o.regions.resolve(ctx, arg)
	if err != nil {
		return nil, err
	}
	// Nothing is stored, so how stores would become durable does not matter.
	mapping, err := pmem.Open(b.path, pmem.Options{ReadOnly: true, Emulated: b.emulated})
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
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "%s\n", p)
	}
	if hidden := r.Total() - uint64(len(r.Problems)); hidden > 0 {
		fmt.Fprintf(&b, "and %d more\n", hidden)
	}
	verdict := "clean"
	if r.Total() > 0 {
		verdict = fmt.Sprintf("%d problems; copy what is readable to another volume and make this one anew", r.Total())
	}
	fmt.Fprintf(&b, "%s: %s: %d/%d inodes, %d/%d blocks, %d directories, %.2f s\n",
		arg, verdict, r.Totals.Inodes, r.Totals.InodesMax, r.Totals.BlocksUsed, r.Totals.Blocks, r.Totals.Directories, r.Seconds)
	_, err := io.WriteString(w, b.String())
	return err
}

// fsckHelperArgs turns the command line that fsck(8) gives to fsck.nvfs into
// that of the subcommand. Automatic repair at boot becomes a check: what it
// finds is for a person to decide about.
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
