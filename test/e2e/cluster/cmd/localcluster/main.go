// Command localcluster runs a two-node Kubernetes cluster with the driver on
// this machine. See package localcluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

const usage = `usage: localcluster [--dir DIR] [--repository DIR] COMMAND

  build             build Kubernetes, etcd, sidecars and helm, if they are not cached
  up                start the cluster and install the driver; run make build before
  down              take it down without a trace
  shell             a shell with kubectl and helm that reaches the cluster
  run COMMAND...    the same for one command
  node NODE COMMAND...  run a command inside a node
  conformance  the storage suite of Kubernetes, in a cluster that is up
`

func main() {
	dir := flag.String("dir", localcluster.DefaultDir, "directory of the cluster")
	repository := flag.String("repository", ".", "the repository")
	var values []string
	flag.Func("set", "a value of the chart for up, as for helm --set; may be repeated", func(s string) error {
		values = append(values, s)
		return nil
	})
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := execute(ctx, *dir, *repository, values, flag.Args()); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 {
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintf(os.Stderr, "localcluster: %v\n", err)
		os.Exit(1)
	}
}

func execute(ctx context.Context, dir, repository string, values, args []string) error {
	if len(args) == 0 {
		flag.Usage()
		return errors.New("no command")
	}
	if args[0] == localcluster.NodeInit {
		return localcluster.RunNodeInit(args[1])
	}
	repository, err := filepath.Abs(repository)
	if err != nil {
		return err
	}
	module := filepath.Join(repository, "test", "e2e", "cluster")
	bin, err := localcluster.Binaries(module)
	if err != nil {
		return err
	}
	cluster := localcluster.New(dir, bin)
	switch args[0] {
	case "build":
		return localcluster.Build(ctx, module, bin, log)
	case "up":
		return up(ctx, cluster, repository, module, values)
	case "down":
		return cluster.Down(ctx)
	case "shell":
		fmt.Println("kubectl and helm reach the cluster; exit leaves it running")
		return cluster.Run(ctx, "bash")
	case "run":
		return cluster.Run(ctx, args[1:]...)
	case "conformance":
		return conformance(ctx, cluster, repository, args[1:])
	case "node":
		return inNode(ctx, cluster, args[1:])
	}
	flag.Usage()
	return fmt.Errorf("unknown command %q", args[0])
}

var start = time.Now()

func log(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
}

func up(ctx context.Context, cluster *localcluster.Cluster, repository, module string, values []string) error {
	if err := localcluster.Build(ctx, module, cluster.Bin, log); err != nil {
		return err
	}
	if err := cluster.Up(ctx, repository, log); err != nil {
		return err
	}
	log("installing the driver")
	if err := cluster.InstallDriver(ctx, repository, values...); err != nil {
		return err
	}
	log("ready: make cluster-shell")
	return nil
}

func inNode(ctx context.Context, cluster *localcluster.Cluster, args []string) error {
	if len(args) < 2 {
		return errors.New("node: a node and a command are needed")
	}
	node, err := cluster.Node(args[0])
	if err != nil {
		return err
	}
	enter, err := node.Command()
	if err != nil {
		return err
	}
	return localcluster.Attach(ctx, nil, append(enter, args[1:]...)...)
}
