//go:build !nvfstools

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench/cluster"
	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// benchClusterOptions are the flags of `bench cluster`.
type benchClusterOptions struct {
	kubeconfig, jobs  string
	classes, only     []string
	image, pull, node string
	runtime, timeout  time.Duration
	json, html        string
}

func newBenchClusterCommand() *cobra.Command {
	opt := benchClusterOptions{jobs: "deploy/examples/fio", timeout: 10 * time.Minute}
	cmd := &cobra.Command{
		Use:   "cluster [flags]",
		Short: "Run fio Jobs against the StorageClasses of a cluster",
		Long: "cluster runs the fio Jobs of a directory, which can be applied by hand as well, in a\n" +
			"Kubernetes cluster: each against each StorageClass, one after the other, in a namespace\n" +
			"that it makes and removes. The results come as a table and, if asked for, as JSON and\n" +
			"as a page. Classes of other drivers can be named for comparison.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return opt.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opt.kubeconfig, "kubeconfig", "", "file that says how to reach the cluster (default: what kubectl uses)")
	flags.StringVar(&opt.jobs, "jobs", opt.jobs, "directory of the manifests, one file with a claim and a Job for each workload")
	flags.StringSliceVar(&opt.only, "only", nil, "run only these workloads, by name of the file")
	flags.StringSliceVar(&opt.classes, "class", nil, "StorageClasses (default: all of "+driver.Name+")")
	flags.StringVar(&opt.image, "image", "", "image with fio (default: that of the manifests, which installs it)")
	flags.StringVar(&opt.pull, "pull-policy", "", "pull policy of the image: Always, IfNotPresent or Never")
	flags.StringVar(&opt.node, "node", "", "host name of the node to run on (default: where the scheduler puts them)")
	flags.DurationVar(&opt.runtime, "runtime", 0, "how long each job of fio measures, in whole seconds (default: what the manifests say)")
	flags.DurationVar(&opt.timeout, "timeout", opt.timeout, "limit for each Job")
	flags.StringVar(&opt.json, "json", "", "also write the report to this file")
	flags.StringVar(&opt.html, "html", "", "also write it as a page to this file")
	return cmd
}

func (o *benchClusterOptions) run(cmd *cobra.Command) error {
	if o.runtime < 0 || o.runtime%time.Second != 0 {
		return fmt.Errorf("--runtime %s must be whole seconds", o.runtime)
	}
	workloads, err := o.workloads()
	if err != nil {
		return err
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	classes, err := o.storageClasses(cmd.Context(), client)
	if err != nil {
		return err
	}
	report, err := cluster.Run(cmd.Context(), cluster.Options{
		Client: client, Workloads: workloads, Classes: classes, Image: o.image, Pull: corev1.PullPolicy(o.pull), Node: o.node, Runtime: o.runtime, Timeout: o.timeout,
		Progress: func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) },
	})
	if report == nil {
		return err
	}
	err = errors.Join(err, report.WriteText(cmd.OutOrStdout()), writeTo(o.json, report.WriteJSON), writeTo(o.html, report.WriteHTML))
	if n := report.Failed(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d workloads failed", n, len(report.Results)))
	}
	return err
}

func (o *benchClusterOptions) workloads() ([]cluster.Workload, error) {
	all, err := cluster.Load(o.jobs)
	if err != nil || len(o.only) == 0 {
		return all, err
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(w cluster.Workload) bool { return !slices.Contains(o.only, w.Name) })
	if len(chosen) != len(o.only) {
		var names []string
		for _, w := range all {
			names = append(names, w.Name)
		}
		return nil, fmt.Errorf("--only %v: in %s there are %v", o.only, o.jobs, names)
	}
	return chosen, nil
}

// client reaches the cluster that kubectl would.
func (o *benchClusterOptions) client() (kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	config.UserAgent = "nvfs-csi-bench/" + version
	return kubernetes.NewForConfig(config)
}

// storageClasses are those that are asked for, else all of the driver.
func (o *benchClusterOptions) storageClasses(ctx context.Context, client kubernetes.Interface) ([]storagev1.StorageClass, error) {
	list, err := client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("StorageClasses: %w", err)
	}
	chosen := slices.DeleteFunc(list.Items, func(c storagev1.StorageClass) bool {
		if len(o.classes) > 0 {
			return !slices.Contains(o.classes, c.Name)
		}
		return c.Provisioner != driver.Name
	})
	if len(chosen) == 0 || len(o.classes) > 0 && len(chosen) != len(o.classes) {
		return nil, fmt.Errorf("the cluster has no StorageClass of %s, or not all of %v; kubectl get storageclass shows what there is", driver.Name, o.classes)
	}
	return chosen, nil
}
