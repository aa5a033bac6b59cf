// Command nvfs-csi is the whole of the project in one static binary: the CSI
// driver, the filesystem's tools, and the process that serves a volume. Called
// as mkfs.nvfs, fsck.nvfs or mount.nvfs it is that tool, so that mkfs(8),
// fsck(8) and mount(8) find it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// version is set by the linker.
var version = "unknown"

// exitError carries the exit code of a command that distinguishes several,
// as fsck does.
type exitError struct {
	code int
	err  error // printed unless nil
}

func (e *exitError) Error() string {
	if e.err == nil {
		return "exit code " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func main() {
	// A reader that goes away (| head) makes writing fail, as it should, and
	// does not kill a process that has mounts to take down. Programs that are
	// started are not concerned, as they would be if the signal were ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, os.Args)
	stop()
	klog.Flush()
	os.Exit(code)
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, argv []string) int {
	root := newRootCommand()
	root.SetArgs(toolArgs(argv))
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	code := 1
	var exit *exitError
	if errors.As(err, &exit) {
		code = exit.code
		if exit.err == nil {
			return code
		}
	} else if cmd.Name() == "fsck" {
		// Only cobra's own complaints about the command line get here.
		code = fsckUsage
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", cmd.CommandPath(), err)
	return code
}

// toolArgs turns the command line of mkfs.nvfs, fsck.nvfs and mount.nvfs into
// that of the subcommand.
func toolArgs(argv []string) []string {
	args := argv[1:]
	switch filepath.Base(argv[0]) {
	case "mkfs.nvfs":
		return append([]string{"mkfs"}, args...)
	case "fsck.nvfs":
		return append([]string{"fsck"}, fsckHelperArgs(args)...)
	case "mount.nvfs":
		return append([]string{"mount"}, mountHelperArgs(args)...)
	}
	return args
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "nvfs-csi",
		Short: "Persistent-memory volumes for Kubernetes, with their own filesystem",
		Long: "nvfs-csi is a CSI driver for persistent memory, and the tools of NVFS, the\n" +
			"userspace filesystem (FUSE) that it puts on it.",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	addLogFlags(root)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newMkfsCommand(),
		newFsckCommand(),
		newMountCommand(),
		newGrowCommand(),
		newServeCommand(),
		newMountdCommand(),
		newKeeperCommand(),
		newDiscoverCommand(),
		newBenchCommand(),
		newVersionCommand(),
	)
	root.AddCommand(csiCommands()...)
	return root
}

// addLogFlags offers klog's verbosity; its other flags concern log files,
// which nothing here writes.
func addLogFlags(root *cobra.Command) {
	var all flag.FlagSet
	klog.InitFlags(&all)
	root.PersistentFlags().AddGoFlag(all.Lookup("v"))
	root.PersistentFlags().Lookup("v").Usage = "log verbosity: 2 lifecycle, 4 requests"
}
