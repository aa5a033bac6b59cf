package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

var errServeByHand = errors.New("serve is not started by hand: mount a volume with \"nvfs-csi mount PATH MOUNTPOINT\", which starts it")

// newServeCommand is the process behind a mount. It is started by mountd, from
// which it gets all it needs but its state directory.
func newServeCommand() *cobra.Command {
	opt := mountd.ServeOptions{Version: version, OpenVolume: openVolume, Prepare: prepareVolume, Rehearse: rehearseVolume}
	cmd := &cobra.Command{
		Use:     "serve [flags]",
		Aliases: []string{mountd.SpareCommand}, // until it has a volume
		Short:   "Serve a mounted volume (started by mount and by the driver)",
		Long: "serve is the process behind a mount: it answers the kernel's requests for one\n" +
			"volume until that is unmounted. mountd starts it, gives it an open FUSE connection, and\n" +
			"starts another one if it dies; it is not useful to start by hand.",
		Args: func(*cobra.Command, []string) error { // room to show what is served
			if opt.LinkFD == 0 {
				return errServeByHand
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := mountd.Serve(cmd.Context(), opt)
			if code := mountd.ExitCode(err); code != 0 {
				return &exitError{code: code}
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opt.StateDir, "state-dir", mountd.DefaultStateDir, "directory of control sockets and locks")
	flags.IntVar(&opt.LinkFD, "link-fd", 0, "descriptor of the connection to mountd")
	return cmd
}
