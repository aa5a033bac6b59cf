package localcluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Run runs a command with kubectl and helm on its PATH, in the network
// namespace of the control plane, on this terminal.
func (c *Cluster) Run(ctx context.Context, argv ...string) error {
	env := []string{"KUBECONFIG=" + c.Kubeconfig(), "PATH=" + c.Bin + ":" + os.Getenv("PATH"),
		"HELM_CACHE_HOME=" + c.path("helm"), "HELM_CONFIG_HOME=" + c.path("helm"), "HELM_DATA_HOME=" + c.path("helm"), "PS1=nvfs-e2e# "}
	return Attach(ctx, env, append(inNetns(controlPlaneNS), argv...)...)
}

// Attach runs a command on this terminal, with further environment.
func Attach(ctx context.Context, env []string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	return cmd.Run()
}

// Kubectl runs kubectl as the administrator, with stdin as its input, and
// returns its standard output.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	argv := append(append(inNetns(controlPlaneNS), filepath.Join(c.Bin, "kubectl"), "--kubeconfig", c.Kubeconfig()), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
