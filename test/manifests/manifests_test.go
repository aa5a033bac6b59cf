// Package manifests checks the YAML below deploy/ against the driver: a class
// that the driver would refuse must not be shipped as an example.
package manifests

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

const deployDir = "../../deploy"

type metadata struct {
	Name   string            `yaml:"name"`
	Labels map[string]string `yaml:"labels"`
}

type storageClass struct {
	APIVersion           string            `yaml:"apiVersion"`
	Kind                 string            `yaml:"kind"`
	Metadata             metadata          `yaml:"metadata"`
	Provisioner          string            `yaml:"provisioner"`
	VolumeBindingMode    string            `yaml:"volumeBindingMode"`
	ReclaimPolicy        string            `yaml:"reclaimPolicy"`
	AllowVolumeExpansion bool              `yaml:"allowVolumeExpansion"`
	Parameters           map[string]string `yaml:"parameters"`
}

type csiDriver struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`
	Spec       struct {
		AttachRequired       *bool    `yaml:"attachRequired"`
		PodInfoOnMount       *bool    `yaml:"podInfoOnMount"`
		StorageCapacity      *bool    `yaml:"storageCapacity"`
		RequiresRepublish    *bool    `yaml:"requiresRepublish"`
		FSGroupPolicy        string   `yaml:"fsGroupPolicy"`
		VolumeLifecycleModes []string `yaml:"volumeLifecycleModes"`
	} `yaml:"spec"`
}

type claim struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`
	Spec       struct {
		AccessModes      []string `yaml:"accessModes"`
		StorageClassName string   `yaml:"storageClassName"`
		Resources        struct {
			Requests map[string]string `yaml:"requests"`
		} `yaml:"resources"`
	} `yaml:"spec"`
}

type pod struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`
	Spec       struct {
		Containers []struct {
			Name         string   `yaml:"name"`
			Image        string   `yaml:"image"`
			Command      []string `yaml:"command"`
			VolumeMounts []struct {
				Name      string `yaml:"name"`
				MountPath string `yaml:"mountPath"`
			} `yaml:"volumeMounts"`
		} `yaml:"containers"`
		Volumes []struct {
			Name                  string `yaml:"name"`
			PersistentVolumeClaim struct {
				ClaimName string `yaml:"claimName"`
			} `yaml:"persistentVolumeClaim"`
		} `yaml:"volumes"`
	} `yaml:"spec"`
}

// decode reads the one document of a file. A field that the type does not
// have is an error, so a misspelt one is found.
func decode[T any](t *testing.T, name string) T {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(deployDir, name))
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	var v T
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var more any
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		t.Fatalf("%s: a second document, or %v", name, err)
	}
	return v
}

// documents returns the documents of one kind in a file that has many.
func documents[T any](t *testing.T, name, kind string) []T {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(deployDir, name))
	if err != nil {
		t.Fatal(err)
	}
	var found []T
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var node yaml.Node
		if err := dec.Decode(&node); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var head struct {
			Kind string `yaml:"kind"`
		}
		var v T
		if err := node.Decode(&head); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if head.Kind != kind {
			continue
		}
		if err := node.Decode(&v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		found = append(found, v)
	}
}

// installations are generated from the chart.
var installations = []string{"nvfs-csi.yaml", "nvfs-csi-emulated.yaml"}

func TestCSIDriver(t *testing.T) {
	for _, file := range installations {
		drivers := documents[csiDriver](t, file, "CSIDriver")
		if len(drivers) != 1 {
			t.Fatalf("%s has %d CSIDriver objects", file, len(drivers))
		}
		checkCSIDriver(t, drivers[0])
	}
}

func checkCSIDriver(t *testing.T, d csiDriver) {
	t.Helper()
	if d.APIVersion != "storage.k8s.io/v1" || d.Kind != "CSIDriver" || d.Metadata.Name != driver.Name {
		t.Errorf("is %s %s %q, want storage.k8s.io/v1 CSIDriver %q", d.APIVersion, d.Kind, d.Metadata.Name, driver.Name)
	}
	s := d.Spec
	for field, ok := range map[string]bool{
		"attachRequired: false":              s.AttachRequired != nil && !*s.AttachRequired,
		"podInfoOnMount: true":               s.PodInfoOnMount != nil && *s.PodInfoOnMount,
		"storageCapacity: true":              s.StorageCapacity != nil && *s.StorageCapacity,
		"requiresRepublish: false":           s.RequiresRepublish != nil && !*s.RequiresRepublish,
		"fsGroupPolicy: File":                s.FSGroupPolicy == "File",
		"volumeLifecycleModes: [Persistent]": len(s.VolumeLifecycleModes) == 1 && s.VolumeLifecycleModes[0] == "Persistent",
	} {
		if !ok {
			t.Errorf("%s is missing", field)
		}
	}
}

func TestStorageClasses(t *testing.T) {
	classes := readClasses(t)
	if _, ok := classes["nvfs"]; !ok {
		t.Error("there is no class nvfs")
	}
	for _, file := range installations {
		for _, c := range documents[storageClass](t, file, "StorageClass") {
			checkClass(t, file+": "+c.Metadata.Name, c)
		}
	}
	for name, c := range classes {
		checkClass(t, name, c)
	}
}

func checkClass(t *testing.T, name string, c storageClass) {
	t.Helper()
	if c.APIVersion != "storage.k8s.io/v1" || c.Kind != "StorageClass" || c.Provisioner != driver.Name {
		t.Errorf("%s: is %s %s of %q", name, c.APIVersion, c.Kind, c.Provisioner)
	}
	if c.VolumeBindingMode != "WaitForFirstConsumer" {
		t.Errorf("%s: volumeBindingMode %q would place volumes before their pods", name, c.VolumeBindingMode)
	}
	if c.ReclaimPolicy == "" {
		t.Errorf("%s: no reclaimPolicy", name)
	}
	if _, err := driver.ParseParams(driver.OriginClass, c.Parameters); err != nil {
		t.Errorf("%s: the driver refuses its parameters: %v", name, err)
	}
}

func TestExample(t *testing.T) {
	c, p := decode[claim](t, "examples/pvc.yaml"), decode[pod](t, "examples/pod.yaml")
	if c.APIVersion != "v1" || c.Kind != "PersistentVolumeClaim" || p.APIVersion != "v1" || p.Kind != "Pod" {
		t.Errorf("is %s %s and %s %s", c.APIVersion, c.Kind, p.APIVersion, p.Kind)
	}
	if _, ok := readClasses(t)[c.Spec.StorageClassName]; !ok {
		t.Errorf("the claim wants class %q, which is not among the examples", c.Spec.StorageClassName)
	}
	if len(c.Spec.AccessModes) != 1 || c.Spec.Resources.Requests["storage"] == "" {
		t.Errorf("the claim needs one access mode and a size: %+v", c.Spec)
	}
	if len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != c.Metadata.Name {
		t.Errorf("the pod does not use claim %s: %+v", c.Metadata.Name, p.Spec.Volumes)
	}
	for _, container := range p.Spec.Containers {
		if len(container.VolumeMounts) != 1 || container.VolumeMounts[0].Name != p.Spec.Volumes[0].Name {
			t.Errorf("container %s does not mount the volume", container.Name)
		}
	}
}

// TestEveryFileIsChecked fails for a file that no test above reads.
func TestEveryFileIsChecked(t *testing.T) {
	known := map[string]bool{"nvfs-csi.yaml": true, "nvfs-csi-emulated.yaml": true, "examples/pvc.yaml": true, "examples/pod.yaml": true}
	err := filepath.WalkDir(deployDir, func(name string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(deployDir, name)
		if err == nil && !d.IsDir() && !known[rel] && filepath.Dir(rel) != "storageclass" && filepath.Dir(rel) != "examples/fio" { // those: pkg/bench/cluster
			t.Errorf("%s is checked by no test", rel)
		}
		return errors.Join(err, relErr)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func readClasses(t *testing.T) map[string]storageClass {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(deployDir, "storageclass", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]storageClass{}
	for _, f := range files {
		c := decode[storageClass](t, filepath.Join("storageclass", filepath.Base(f)))
		if c.Metadata.Name+".yaml" != filepath.Base(f) {
			t.Errorf("%s holds class %q", f, c.Metadata.Name)
		}
		classes[c.Metadata.Name] = c
	}
	return classes
}
