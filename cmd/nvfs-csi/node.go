//go:build !nvfstools

package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/mount-utils"

	"github.com/nvfs-csi/nvfs-csi/pkg/deviceplugin"
	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

func newNodeCommand() *cobra.Command {
	opt := driver.DefaultOptions()
	opt.Version = version
	var regions regionFlags
	var runDir, calibrationFile, httpAddress, kubeconfig string
	var externalMountd, annotated, devicePlugin bool
	cmd := &cobra.Command{
		Use:   "node --node-id NAME [--emulate REGION]",
		Short: "Run the CSI driver of one node",
		Long: "node serves the CSI Identity, Controller and Node services of one node on a Unix\n" +
			"socket. It provisions the persistent memory of its own node only. Volumes stay\n" +
			"mounted when it ends: each is served by a process of its own.\n\n" +
			"At its first start it measures for a few seconds which flush mode `auto` stands for\n" +
			"on each kind of memory and NUMA node, and keeps that in --calibration-file. A volume\n" +
			"that is mounted before uses the default. An administrator can choose another mode for\n" +
			"a node: with --flush-mode, in --flush-mode-file, and, with --flush-mode-annotation, by\n" +
			"the annotation " + driver.FlushModeAnnotation + " of its Node.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Changes of regions are serialised with every other process on the
			// host that keeps its locks in the same place.
			manager, err := regions.manager(opt.StateDir)
			if err != nil {
				return err
			}
			calibrate, err := newCalibrator(calibrationFile, regions.emulate)
			if err != nil {
				return err
			}
			calibrate.system, _ = manager.(*ndctl.System)
			if calibrate.system == nil {
				opt.SettleTimeout = 0 // emulated memory is there at once
			}
			var annotation *nodeAnnotation
			var flushAnnotation func() string
			if annotated {
				client, err := kubernetesClient(kubeconfig)
				if err != nil {
					return err
				}
				if annotation, err = newNodeAnnotation(client, opt.NodeID, opt.StateDir); err != nil {
					return err
				}
				flushAnnotation = annotation.get
			}
			run, err := runDirectory(runDir)
			if err != nil {
				return err
			}
			launch := launcherOptions(run, false)
			launch.External = externalMountd
			launcher := mountd.NewLauncher(launch)
			ctx, end := context.WithCancel(cmd.Context())
			// Whoever dies, this process or the keeper, the other one still
			// holds the connections.
			held := launcher.Hold(ctx)
			defer func() { end(); held() }()
			d, err := driver.New(opt, driver.Deps{
				Namespaces: manager,
				NVFS:       calibratedMounter{launcher, calibrationFile},
				Volumes:    formatter{},
				Kernel:     kernelFilesystems{},
				Mount:      mount.New(""),

				FlushAnnotation: flushAnnotation,
				PodResources:    driver.KubeletPodResources(filepath.Join(opt.KubeletDir, "pod-resources", "kubelet.sock")),
			})
			if err != nil {
				return err
			}
			stop := calibrate.start(cmd.Context(), d.Settled())
			defer stop()
			group, ctx := errgroup.WithContext(cmd.Context())
			if annotation != nil {
				group.Go(func() error { annotation.run(ctx); return nil })
			}
			group.Go(func() error { return driver.ServeHTTP(ctx, httpAddress, d.HTTPHandler()) })
			group.Go(func() error { return d.Run(ctx) })
			if devicePlugin {
				group.Go(func() error {
					deviceplugin.Run(ctx, deviceplugin.Options{Dir: filepath.Join(opt.KubeletDir, "device-plugins")}, d.NUMANodes)
					return nil
				})
			}
			return group.Wait()
		},
	}
	opt.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&runDir, "run-dir", mountd.DefaultStateDir, "directory of control sockets, locks and logs of the serving processes")
	cmd.Flags().BoolVar(&externalMountd, "external-mountd", false, "wait for a keeper and mountd that others run on --run-dir, instead of starting them")
	cmd.Flags().StringVar(&calibrationFile, "calibration-file", pmem.DefaultCalibrationFile, "file that keeps what was measured for the flush mode auto")
	cmd.Flags().StringVar(&httpAddress, "http-address", "", "TCP address for /healthz, /readyz, /metrics and "+driver.ReportPath+", such as :9810; none if empty")
	cmd.Flags().BoolVar(&annotated, "flush-mode-annotation", false, "take the node's flush mode from the annotation "+driver.FlushModeAnnotation+" of its Node, if there is one; it takes precedence over the flag and the file")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "file that says how to reach the API server for --flush-mode-annotation; the pod's own account if empty")
	cmd.Flags().BoolVar(&devicePlugin, "device-plugin", false, "offer the kubelet a resource "+driver.Name+"/numa-N for each NUMA node with persistent memory, on sockets in KUBELET-DIR/device-plugins; containers that ask for it get CPUs there")
	regions.addTo(cmd)
	return cmd
}
