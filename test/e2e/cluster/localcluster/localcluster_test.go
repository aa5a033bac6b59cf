package localcluster

import (
	"archive/tar"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// untar returns the files of an archive.
func untar(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestImageArchive(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "image.tar")
	image := Image{Reference: "localhost/test:1", Files: map[string]string{"usr/bin/program": program}, Entrypoint: []string{"/usr/bin/program"}}
	if err := image.Write(file); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	archive := untar(t, data)
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(archive["manifest.json"], &manifest); err != nil || len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{"localhost/test:1"}) {
		t.Fatalf("manifest %s: %v", archive["manifest.json"], err)
	}
	if !bytes.Contains(archive[manifest[0].Config], []byte(`"Entrypoint":["/usr/bin/program"]`)) {
		t.Errorf("config %s", archive[manifest[0].Config])
	}
	layer := untar(t, archive[manifest[0].Layers[0]])
	if string(layer["usr/bin/program"]) != "binary" {
		t.Errorf("the layer has %d files, the program is %q", len(layer), layer["usr/bin/program"])
	}
	for _, dir := range []string{"tmp/", "usr/", "usr/bin/", "proc/"} {
		if _, ok := layer[dir]; !ok {
			t.Errorf("the layer has no directory %s", dir)
		}
	}
	again := filepath.Join(dir, "again.tar")
	if err := image.Write(again); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(again); err != nil || !bytes.Equal(data, second) {
		t.Errorf("the same files make another image: %v", err)
	}
}

func TestDriverImageFollowsTheDockerfile(t *testing.T) {
	image, err := DriverImageOf("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(image.Entrypoint, []string{"/usr/bin/nvfs-csi"}) {
		t.Errorf("entrypoint %v", image.Entrypoint)
	}
	for _, program := range []string{"nvfs-csi", "nvfs"} {
		if from := image.Files["usr/bin/"+program]; !strings.HasSuffix(from, "/bin/"+program) {
			t.Errorf("%s comes from %q", program, from)
		}
	}
}

func TestCertificatesAreWhatKubernetesWants(t *testing.T) {
	c := New(t.TempDir(), "/nonexistent")
	if err := c.writePKI(); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(c.path("pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("no CA")
	}
	for name, want := range map[string]struct {
		user, group, host string
		usage             x509.ExtKeyUsage
	}{
		"apiserver":  {"kube-apiserver", "", controlPlaneIP, x509.ExtKeyUsageServerAuth},
		"admin":      {"admin", "system:masters", "", x509.ExtKeyUsageClientAuth},
		"node-n1":    {"system:node:n1", "system:nodes", "", x509.ExtKeyUsageClientAuth},
		"serving-n2": {"system:node:n2", "system:nodes", "198.18.0.12", x509.ExtKeyUsageServerAuth},
	} {
		pair, err := tls.LoadX509KeyPair(c.path("pki", name+".crt"), c.path("pki", name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		cert := pair.Leaf
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: want.host, KeyUsages: []x509.ExtKeyUsage{want.usage}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if cert.Subject.CommonName != want.user || strings.Join(cert.Subject.Organization, ",") != want.group {
			t.Errorf("%s is %s", name, cert.Subject)
		}
	}
	if _, err := os.Stat(c.Kubeconfig()); err != nil {
		t.Error(err)
	}
}

func TestStrayMounts(t *testing.T) {
	for mountpoint, c := range map[string]struct {
		line string
		want bool
	}{
		"/dev/shm":           {"29 1 0:5 / /dev/shm rw - tmpfs tmpfs rw", false},
		"/dev/shm/test":      {"30 29 0:6 / /dev/shm/test rw - tmpfs tmpfs rw", true},
		"/tmp/x":             {"31 1 0:7 / /tmp/x rw - ext4 /dev/loop0 rw", true},
		"/home/volume":       {"32 1 0:8 / /home/volume rw - fuse.nvfs /dev/dax0.0 rw", true},
		"/sys/fs/cgroup/cpu": {"33 1 0:9 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", false},
		"/":                  {"1 0 254:0 / / rw - ext4 /dev/vda rw", false},
	} {
		if got := isStray(mountpoint, c.line); got != c.want {
			t.Errorf("%s: stray %v, want %v", mountpoint, got, c.want)
		}
	}
}
