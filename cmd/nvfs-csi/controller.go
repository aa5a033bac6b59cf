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
			"than any extent, of volumes whose node is gone, of volumes that nobody asks for any\n" +
			"more, and of pods that do not run beside their volumes. It labels PersistentVolumes\n" +
			"with their NUMA node, and gives a claim back to the scheduler when the node that was\n" +
			"to make its volume is gone. With --webhook-address it lets new pods ask for CPUs on\n" +
			"the NUMA node of their volumes. Beside it runs the csi-resizer, for which it serves a\n" +
			"CSI socket.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := kubernetesClient(kubeconfig)
			if err != nil {
				return err
			}
			if opt.WebhookClient, err = kubernetesClient(kubeconfig); err != nil {
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
	flags.StringVar(&opt.HTTPAddress, "http-address", "", "TCP address for /healthz, /readyz and /metrics, such as :9812; none if empty")
	flags.BoolVar(&opt.AnnotateNodes, "annotate-nodes", false, "keep the annotation "+controller.MemoryAnnotation+" of each Node: its persistent memory by NUMA node")
	flags.StringVar(&opt.WebhookAddress, "webhook-address", "", "TCP address of the webhook that lets pods ask for CPUs beside their volumes, such as :9814; none if empty")
	flags.StringVar(&opt.WebhookService, "webhook-service", "", "name of the Service of the webhook, in --namespace")
	flags.StringVar(&opt.WebhookSecret, "webhook-secret", "", "name of the Secret in --namespace that keeps the certificate of the webhook; it has to exist")
	flags.StringVar(&opt.WebhookConfiguration, "webhook-configuration", "", "name of the MutatingWebhookConfiguration, which has to exist and is told the authority of the certificate")
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
	config.QPS, config.Burst = 20, 40
	config.UserAgent = "nvfs-csi/" + version
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return client, nil
}
