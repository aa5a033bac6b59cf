//go:build !nvfstools

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nvfs-csi/nvfs-csi/pkg/controller"
)

// controllerResync is how often the cluster is looked at when nothing changes.
const controllerResync = time.Minute

func newControllerCommand() *cobra.Command {
	opt := controller.Options{Version: version}
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Watch over the driver in the whole cluster",
		Long: "controller looks at the whole cluster and changes no volume. Events tell users of\n" +
			"StorageClasses that are wrong or that no node can serve, of claims that are larger\n" +
			"than any extent, of volumes whose node is gone, and of volumes that nobody asks for\n" +
			"any more. Beside it runs the csi-resizer, for which it serves a CSI socket.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := kubernetesClient(kubeconfig)
			if err != nil {
				return err
			}
			return controller.Run(cmd.Context(), client, opt)
		},
	}
	flags := cmd.Flags()
	cmd.PersistentFlags().StringVar(&kubeconfig, "kubeconfig", "", "file that says how to reach the API server; the pod's own account if empty")
	flags.StringVar(&opt.Endpoint, "endpoint", "", "CSI socket to serve for the resizer, unix:///PATH; none if empty")
	flags.StringVar(&opt.Namespace, "namespace", "", "namespace of the driver (required)")
	flags.StringVar(&opt.Identity, "identity", "", "unique name of this process, such as that of its pod (required)")
	flags.StringVar(&opt.NodeSelector, "node-selector", "", "labels of the pods that run \"nvfs-csi node\" (required)")
	flags.IntVar(&opt.NodePort, "node-port", 9810, "port of --http-address of \"nvfs-csi node\"")
	flags.DurationVar(&opt.Resync, "resync", controllerResync, "how often the cluster is looked at when nothing changes")
	flags.StringVar(&opt.HTTPAddress, "http-address", "", "TCP address for /healthz and /metrics, such as :9812; none if empty")
	cmd.AddCommand(newUninstallCheckCommand(&kubeconfig))
	return cmd
}

func newUninstallCheckCommand(kubeconfig *string) *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall-check",
		Short: "Fail while pods use volumes of the driver",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := kubernetesClient(*kubeconfig)
			if err != nil {
				return err
			}
			return controller.CheckUninstall(cmd.Context(), client)
		},
	}
}

func kubernetesClient(kubeconfig string) (kubernetes.Interface, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	config.UserAgent = "nvfs-csi/" + version
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return client, nil
}
