package localcluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kubernetesVersion is what the binaries say they are; it is that of go.mod.
const kubernetesVersion = "v1.37.2"

// program is a package that is built, and the name of its binary.
type program struct {
	name, pkg string
	test      bool // the package's tests
}

// programs are what a cluster is made of.
var programs = []program{
	{name: "etcd", pkg: "go.etcd.io/etcd/server/v3"},
	{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver"},
	{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler"},
	{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet"},
	{name: "kube-proxy", pkg: "k8s.io/kubernetes/cmd/kube-proxy"},
	{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl"},
	{name: "csi-provisioner", pkg: "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"},
	{name: "csi-resizer", pkg: "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"},
	{name: "helm", pkg: "helm.sh/helm/v3/cmd/helm"},
	{name: "pause", pkg: "./cmd/pause"},
}

// buildFlags are the same for everything in the module, so that packages are
// compiled once. Without DWARF a build takes noticeably less time.
func buildFlags() []string {
	stamp := "k8s.io/component-base/version."
	major, rest, _ := strings.Cut(strings.TrimPrefix(kubernetesVersion, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return []string{"-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false",
		"-ldflags=-s -w -X " + stamp + "gitVersion=" + kubernetesVersion + " -X " + stamp + "gitMajor=" + major + " -X " + stamp + "gitMinor=" + minor}
}

// Binaries returns the directory of the binaries that belong to the module in
// moduleDir, whether they exist or not. Its name changes with what goes into
// them.
func Binaries(moduleDir string) (string, error) {
	return binaries("cluster", filepath.Join(moduleDir, "go.sum"))
}

// binaries is the directory of what is built from these files, besides modules.
func binaries(name string, sources ...string) (string, error) {
	version, err := exec.Command("go", "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	hash := sha256.New()
	for _, source := range sources {
		content, err := os.ReadFile(source)
		if err != nil {
			return "", err
		}
		hash.Write(content)
	}
	fmt.Fprintf(hash, "%s%q", version, buildFlags())
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "nvfs-csi", name+"-"+hex.EncodeToString(hash.Sum(nil))[:12]), nil
}

// Build builds what is missing in bin. log is told what is being built.
func Build(ctx context.Context, moduleDir, bin string, log func(format string, args ...any)) error {
	return build(ctx, moduleDir, bin, programs, log)
}

func build(ctx context.Context, moduleDir, bin string, programs []program, log func(format string, args ...any)) error {
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(bin, p.name)); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		log("building %s", p.name)
		partial := filepath.Join(bin, p.name+".partial")
		command := []string{"build"}
		if p.test {
			command = []string{"test", "-c", "-vet=off"} // it would check every package of Kubernetes
		}
		cmd := exec.CommandContext(ctx, "go", append(append(command, buildFlags()...), "-o", partial, p.pkg)...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = moduleDir, os.Stderr, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build of %s: %w", p.name, err)
		}
		if err := os.Rename(partial, filepath.Join(bin, p.name)); err != nil {
			return err
		}
	}
	return nil
}
