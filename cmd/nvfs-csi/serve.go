package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

var errServeByHand = errors.New("serve is not started by hand: mount a volume with \"nvfs-csi mount PATH MOUNTPOINT\", which starts it")

// newServeCommand is the process behind a mount. It is started by mountd,
// with the open FUSE connection; its arguments are for the reader
// of a process list.
func newServeCommand() *cobra.Command {
	opt := mountd.ServeOptions{Version: version, OpenVolume: openVolume}
	var volumeID string
	cmd := &cobra.Command{
		Use:   "serve [flags] PATH MOUNTPOINT",
		Short: "Serve a mounted volume (started by mount and by the driver)",
		Long: "serve is the process behind a mount: it answers the kernel's requests for one\n" +
			"volume until that is unmounted. mountd starts it with an open FUSE connection, and\n" +
			"starts another one if it dies; it is not useful to start by hand.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 || opt.FuseFD == 0 {
				return errServeByHand
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opt.Spec, err = mountd.SpecFromEnv(); err != nil {
				return err
			}
			err = mountd.Serve(cmd.Context(), opt)
			if code := mountd.ExitCode(err); code != 0 {
				return &exitError{code: code}
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&volumeID, "volume", "", "ID of the volume")
	flags.StringVar(&opt.StateDir, "state-dir", mountd.DefaultStateDir, "directory of control sockets and locks")
	flags.IntVar(&opt.FuseFD, "fuse-fd", 0, "descriptor of the FUSE connection")
	flags.IntVar(&opt.LinkFD, "link-fd", 0, "descriptor of the connection to mountd")
	flags.IntVar(&opt.LockFD, "lock-fd", 0, "descriptor of the volume's lock")
	return cmd
}
