package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

const repository = "../../../.."

// TestUpgrade replaces the driver, mountd and the controller by other images of
// a chart with another version while fio writes and verifies, and goes back.
func TestUpgrade(t *testing.T) {
	k := newTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: "while [ ! -e /data/end ]; do " + fioVerify + " || exit 1; done"})
	pod := k.awaitPod("user", corev1.PodRunning)
	servers := k.servers(pod.Spec.NodeName)
	k.loadNextImage()
	t.Cleanup(func() {
		if err := cluster.InstallDriver(k.ctx, repository); err != nil { // also when the test has failed half-way
			t.Error(err)
		}
	})
	if err := cluster.InstallDriver(k.ctx, k.nextRelease(), "image.tag=next"); err != nil {
		t.Fatal(err)
	}
	for _, component := range []string{"node", "mountd"} {
		name := k.driverPod(component, pod.Spec.NodeName)
		if image := k.must("-n", localcluster.Namespace, "get", "pod", name, "-o", "jsonpath={.spec.containers[0].image}"); !strings.HasSuffix(image, ":next") {
			t.Errorf("pod %s has image %s", name, image)
		}
	}
	k.eventually("another server", func() string {
		if now := k.servers(pod.Spec.NodeName); now == servers || now == "" {
			return "servers were " + servers + ", are " + now
		}
		return ""
	})
	if err := cluster.InstallDriver(k.ctx, repository); err != nil {
		t.Fatal(err)
	}
	k.exec("user", "touch /data/end")
	k.awaitPod("user", corev1.PodSucceeded)
}

// servers returns the processes that serve volumes on a node.
func (k *kube) servers(node string) string {
	k.Helper()
	n, err := cluster.Node(node)
	if err != nil {
		k.Fatal(err)
	}
	out, err := n.Exec(k.ctx, "sh", "-c", `for c in /proc/[0-9]*/cmdline; do if tr '\0' ' ' < $c 2>/dev/null | grep -qE 'nvfs(-csi)? serve '; then basename $(dirname $c); fi; done; true`)
	if err != nil {
		k.Fatal(err)
	}
	return strings.Join(strings.Fields(out), " ")
}

// loadNextImage gives the nodes the driver's image once more, as another one.
func (k *kube) loadNextImage() {
	k.Helper()
	image, err := localcluster.DriverImageOf(repository)
	if err != nil {
		k.Fatal(err)
	}
	marker := filepath.Join(k.TempDir(), "next")
	if err := os.WriteFile(marker, []byte("next\n"), 0o644); err != nil {
		k.Fatal(err)
	}
	image.Reference = strings.TrimSuffix(localcluster.DriverImage, "e2e") + "next"
	image.Files["etc/next"] = marker
	// In the cluster's directory the nodes see it, and load it again after a
	// reboot.
	file := filepath.Join(cluster.Images(), "driver-next.tar")
	if err := image.Write(file); err != nil {
		k.Fatal(err)
	}
	for _, n := range cluster.Nodes {
		if err := n.LoadImage(k.ctx, file); err != nil {
			k.Fatal(err)
		}
	}
}

// nextRelease returns a repository whose chart has the next version.
func (k *kube) nextRelease() string {
	k.Helper()
	dir := k.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "charts", "nvfs-csi"), os.DirFS(filepath.Join(repository, "charts", "nvfs-csi"))); err != nil {
		k.Fatal(err)
	}
	values, err := os.ReadFile(filepath.Join(repository, "test", "e2e", "cluster", "values.yaml"))
	if err != nil {
		k.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "test", "e2e", "cluster"), 0o755); err != nil {
		k.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "test", "e2e", "cluster", "values.yaml"), values, 0o644); err != nil {
		k.Fatal(err)
	}
	file := filepath.Join(dir, "charts", "nvfs-csi", "Chart.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		k.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "version: ") || strings.HasPrefix(line, "appVersion: ") {
			key, _, _ := strings.Cut(line, ":")
			lines[i] = key + ": 99.0.0"
		}
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		k.Fatal(err)
	}
	return dir
}

// TestChangedClassParameters: Kubernetes does not let a class be changed. An
// upgrade that wants to says so before it has done anything, and does it once
// the class was deleted.
func TestChangedClassParameters(t *testing.T) {
	k := newTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: "while [ ! -e /data/end ]; do sleep 0.2; done; " + fioVerify})
	k.awaitPod("user", corev1.PodRunning)
	t.Cleanup(func() {
		if _, err := k.try("delete", "storageclass", "nvfs", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
		if err := cluster.InstallDriver(k.ctx, repository); err != nil {
			t.Error(err)
		}
	})
	changed := "storageClasses[0].parameters.cacheMode=direct"
	name := "storageClasses[0].name=nvfs"
	fsType := `storageClasses[0].parameters.csi\.storage\.k8s\.io/fstype=nvfs`
	err := cluster.InstallDriver(k.ctx, repository, name, fsType, changed)
	if err == nil || !strings.Contains(err.Error(), "kubectl delete storageclass nvfs") {
		t.Fatalf("the upgrade with changed parameters: %v", err)
	}
	k.must("delete", "storageclass", "nvfs")
	if err := cluster.InstallDriver(k.ctx, repository, name, fsType, changed); err != nil {
		t.Fatal(err)
	}
	if got := k.must("get", "storageclass", "nvfs", "-o", "jsonpath={.parameters.cacheMode}"); got != "direct" {
		t.Errorf("cacheMode of the class is %q", got)
	}
	k.exec("user", "touch /data/end")
	k.awaitPod("user", corev1.PodSucceeded)
}
