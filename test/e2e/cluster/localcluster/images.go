package localcluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The images that a cluster has from the start.
const (
	PauseImage       = "localhost/pause:e2e"
	ProvisionerImage = "localhost/csi-provisioner:e2e"
	ResizerImage     = "localhost/csi-resizer:e2e"
	ToolsImage       = "localhost/tools:e2e" // busybox and fio
)

// Image is an image with one layer.
type Image struct {
	Reference  string
	Files      map[string]string // path in the image: path on this machine
	Busybox    bool              // with all its commands
	Entrypoint []string
	Command    []string // arguments, unless a pod has others
}

// Write writes the image as an archive that "ctr images import" reads.
func (i Image) Write(file string) error {
	layer, err := i.layer()
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Reference, err)
	}
	digest := sha256.Sum256(layer)
	created := time.Unix(0, 0).UTC().Format(time.RFC3339)
	config, err := json.Marshal(map[string]any{
		"architecture": goarch, "os": "linux", "created": created,
		"config":  map[string]any{"Env": []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin"}, "Entrypoint": i.Entrypoint, "Cmd": i.Command, "WorkingDir": "/"},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(digest[:])}},
		"history": []map[string]string{{"created": created}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{i.Reference}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, entry := range []struct {
		name string
		data []byte
	}{{"manifest.json", manifest}, {"config.json", config}, {"layer.tar", layer}} {
		if err := addFile(w, entry.name, 0o644, bytes.NewReader(entry.data), int64(len(entry.data))); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, archive.Bytes(), 0o600)
}

// layer is the filesystem of the image.
func (i Image) layer() ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	files, links := i.Files, []string(nil)
	if i.Busybox {
		out, err := exec.Command("/bin/busybox", "--list").Output()
		if err != nil {
			return nil, fmt.Errorf("busybox (package busybox-static): %w", err)
		}
		links = strings.Fields(string(out))
		files = map[string]string{"bin/busybox": "/bin/busybox"}
		for to, from := range i.Files {
			files[to] = from
		}
	}
	// Directories first, each once.
	dirs := []string{"tmp", "etc", "proc", "sys", "dev", "bin"}
	for to := range files {
		for dir := path.Dir(to); dir != "."; dir = path.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		mode := int64(0o755)
		if dir == "tmp" {
			mode = 0o1777
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: mode}); err != nil {
			return nil, err
		}
	}
	names := make([]string, 0, len(files))
	for to := range files {
		names = append(names, to)
	}
	slices.Sort(names)
	for _, to := range names {
		if err := addFileFrom(w, to, files[to]); err != nil {
			return nil, err
		}
	}
	for _, link := range links {
		if _, taken := files["bin/"+link]; taken || link == "busybox" {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + link, Linkname: "busybox", Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	return buffer.Bytes(), w.Close()
}

func addFileFrom(w *tar.Writer, to, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return addFile(w, to, int64(info.Mode().Perm()), f, info.Size())
}

func addFile(w *tar.Writer, name string, mode int64, data io.Reader, size int64) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size}); err != nil {
		return err
	}
	_, err := io.Copy(w, data)
	return err
}

// WithLibraries adds a program of this machine and the shared libraries that it
// needs, at the places where they are here.
func (i *Image) WithLibraries(program string) error {
	found, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	out, err := exec.Command("ldd", found).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", found, err)
	}
	i.Files["usr/bin/"+path.Base(program)] = found
	for _, field := range strings.Fields(string(out)) {
		if strings.HasPrefix(field, "/") {
			i.Files[strings.TrimPrefix(field, "/")] = field
		}
	}
	return nil
}

// buildSystemImages makes the images that do not depend on the driver.
func (c *Cluster) buildSystemImages() error {
	bin := func(name string) string { return filepath.Join(c.Bin, name) }
	tools := Image{Reference: ToolsImage, Busybox: true, Files: map[string]string{}}
	if err := tools.WithLibraries("fio"); err != nil {
		return err
	}
	for name, image := range map[string]Image{
		"pause":       {Reference: PauseImage, Files: map[string]string{"pause": bin("pause")}, Entrypoint: []string{"/pause"}},
		"provisioner": {Reference: ProvisionerImage, Files: map[string]string{"csi-provisioner": bin("csi-provisioner")}, Entrypoint: []string{"/csi-provisioner"}},
		"resizer":     {Reference: ResizerImage, Files: map[string]string{"csi-resizer": bin("csi-resizer")}, Entrypoint: []string{"/csi-resizer"}},
		"tools":       tools,
	} {
		if err := image.Write(filepath.Join(c.Images(), name+".tar")); err != nil {
			return err
		}
	}
	return nil
}
