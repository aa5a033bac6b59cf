package localcluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// DriverImage is the driver's, built from the Dockerfile's instructions.
	DriverImage = "localhost/nvfs-csi:e2e"
	// Namespace is where the driver is installed, and the name of the release.
	Namespace = "nvfs-csi"
)

// DriverImageOf describes the driver's image: what the Dockerfile copies out of
// its build stage, on top of busybox instead of Debian.
func DriverImageOf(repository string) (Image, error) {
	image := Image{Reference: DriverImage, Busybox: true, Files: map[string]string{}}
	f, err := os.Open(filepath.Join(repository, "Dockerfile"))
	if err != nil {
		return image, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 4 && fields[0] == "COPY" && fields[1] == "--from=build":
			from, ok := strings.CutPrefix(fields[2], "/src/")
			if !ok {
				return image, fmt.Errorf("Dockerfile: %s is not below /src", fields[2])
			}
			image.Files[strings.TrimPrefix(fields[3], "/")] = filepath.Join(repository, from)
		case len(fields) > 1 && fields[0] == "ENTRYPOINT":
			if err := json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "ENTRYPOINT")), &image.Entrypoint); err != nil {
				return image, fmt.Errorf("Dockerfile: ENTRYPOINT: %w", err)
			}
		}
	}
	if len(image.Files) == 0 || len(image.Entrypoint) == 0 {
		return image, fmt.Errorf("the Dockerfile copies nothing or has no ENTRYPOINT")
	}
	return image, lines.Err()
}

// AddDriverImage makes the driver's image from the binaries in the repository,
// for the nodes to load when they start.
func (c *Cluster) AddDriverImage(repository string) error {
	image, err := DriverImageOf(repository)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Images(), 0o700); err != nil {
		return err
	}
	return image.Write(filepath.Join(c.Images(), "driver.tar"))
}

// InstallDriver installs or upgrades the chart with the values of the tests and
// waits until all its pods are ready. set are further values, as for helm --set.
func (c *Cluster) InstallDriver(ctx context.Context, repository string, set ...string) error {
	args := []string{"upgrade", "--install", Namespace, filepath.Join(repository, "charts", "nvfs-csi"),
		"--namespace", Namespace, "--create-namespace", "--wait", "--timeout", "3m",
		"-f", filepath.Join(repository, "test", "e2e", "cluster", "values.yaml")}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	if err := c.Helm(ctx, args...); err != nil {
		return err
	}
	// Helm is content when all but as many as may be unavailable have been updated.
	return c.kubectl(ctx, "--namespace", Namespace, "rollout", "status", "daemonset", "--selector", "app.kubernetes.io/instance="+Namespace, "--timeout=3m")
}

// UninstallDriver removes the chart; its hook refuses while volumes are in use.
func (c *Cluster) UninstallDriver(ctx context.Context) error {
	return c.Helm(ctx, "uninstall", Namespace, "--namespace", Namespace, "--wait", "--timeout", "3m")
}

// Helm runs helm against the cluster.
func (c *Cluster) Helm(ctx context.Context, args ...string) error {
	// Caches and plugins of the user have nothing to do with it.
	command := append(inNetns(controlPlaneNS), "env", "HELM_CACHE_HOME="+c.path("helm"), "HELM_CONFIG_HOME="+c.path("helm"), "HELM_DATA_HOME="+c.path("helm"),
		filepath.Join(c.Bin, "helm"), "--kubeconfig", c.Kubeconfig())
	return run(ctx, append(command, args...)...)
}
