//go:build !nvfstools

package main

import (
	"errors"

	"github.com/spf13/cobra"
	"k8s.io/mount-utils"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

func newNodeCommand() *cobra.Command {
	opt := driver.DefaultOptions()
	opt.Version = version
	var regions regionFlags
	var runDir, calibrationFile string
	cmd := &cobra.Command{
		Use:   "node --node-id NAME --emulate REGION",
		Short: "Run the CSI driver of one node",
		Long: "node serves the CSI Identity, Controller and Node services of one node on a Unix\n" +
			"socket. It provisions the persistent memory of its own node only. Volumes stay\n" +
			"mounted when it ends: each is served by a process of its own.\n\n" +
			"At its first start it measures for a few seconds which flush mode `auto` stands for\n" +
			"on each kind of memory and NUMA node, and keeps that in --calibration-file. A volume\n" +
			"that is mounted before uses the default.",
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
			calibrate, err := newCalibrator(calibrationFile, regions.emulate)
			if err != nil {
				return err
			}
			run, err := runDirectory(runDir)
			if err != nil {
				return err
			}
			d, err := driver.New(opt, driver.Deps{
				Namespaces: manager,
				NVFS:       calibratedMounter{newLauncher(run, false), calibrationFile},
				Volumes:    formatter{},
				Kernel:     kernelFilesystems{},
				Mount:      mount.New(""),
			})
			if err != nil {
				return err
			}
			stop := calibrate.start(cmd.Context())
			defer stop()
			return d.Run(cmd.Context())
		},
	}
	opt.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&runDir, "run-dir", mountd.DefaultStateDir, "directory of control sockets, locks and logs of the serving processes")
	cmd.Flags().StringVar(&calibrationFile, "calibration-file", pmem.DefaultCalibrationFile, "file that keeps what was measured for the flush mode auto")
	regions.addTo(cmd)
	return cmd
}
