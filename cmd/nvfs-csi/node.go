package main

import (
	"errors"

	"github.com/spf13/cobra"
	"k8s.io/mount-utils"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

func newNodeCommand() *cobra.Command {
	opt := driver.DefaultOptions()
	opt.Version = version
	var regions regionFlags
	var runDir string
	cmd := &cobra.Command{
		Use:   "node --node-id NAME --emulate REGION",
		Short: "Run the CSI driver of one node",
		Long: "node serves the CSI Identity, Controller and Node services of one node on a Unix\n" +
			"socket. It provisions the persistent memory of its own node only. Volumes stay\n" +
			"mounted when it ends: each is served by a process of its own.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Changes of regions are serialised with every other process on the
			// host that keeps its locks in the same place.
			manager, err := regions.manager(opt.StateDir)
			if err != nil {
				return err
			}
			if manager == nil {
				return errors.New("this version knows emulated regions only: describe one with --emulate")
			}
			d, err := driver.New(opt, driver.Deps{
				Namespaces: manager,
				NVFS:       newLauncher(runDir),
				Volumes:    formatter{},
				Mount:      mount.New(""),
			})
			if err != nil {
				return err
			}
			return d.Run(cmd.Context())
		},
	}
	opt.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&runDir, "run-dir", mountd.DefaultStateDir, "directory of control sockets, locks and logs of the serving processes")
	regions.addTo(cmd)
	return cmd
}
