package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// growTimeout bounds a growth, the proof that a device is blank included.
const growTimeout = 15 * time.Minute

func newGrowCommand() *cobra.Command {
	var regions regionFlags
	var stateDir string
	cmd := &cobra.Command{
		Use:   "grow MOUNTPOINT [PATH...]",
		Short: "Grow a mounted NVFS volume",
		Long: "grow lets the volume that is mounted at MOUNTPOINT, with mount, use more memory\n" +
			"while it is in use: its device, if that has become larger, and each PATH, a blank\n" +
			"device, file or namespace, as a further device. From then on the volume needs all\n" +
			"of them: mount it with -o device=PATH for each, and check it with all their paths.\n" +
			"A growth that was interrupted is repeated with the same command.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			mountpoint, err := realDirectory(args[0])
			if err != nil {
				return err
			}
			dir, err := runDirectory(stateDir)
			if err != nil {
				return err
			}
			var paths []string
			for _, arg := range args[1:] {
				b, err := regions.resolve(cmd.Context(), arg)
				if err != nil {
					return err
				}
				paths = append(paths, b.path)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), growTimeout)
			defer cancel()
			status, err := newLauncher(dir, true).Grow(ctx, mountID(mountpoint), paths...)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s on %d devices\n", mountpoint, formatSize(status.SizeBytes), 1+len(status.Devices))
			return err
		},
	}
	cmd.Flags().StringVar(&stateDir, "state-dir", mountd.DefaultStateDir, "directory of control sockets and locks")
	regions.addTo(cmd)
	return cmd
}
