package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Workload is a claim and a Job with one container that uses it and prints what
// fio reports as JSON.
type Workload struct {
	Name  string
	Claim corev1.PersistentVolumeClaim
	Job   batchv1.Job
}

// Load reads the workloads in the YAML files of a directory, one in each, by
// name of the file.
func Load(dir string) ([]Workload, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("there are no *.yaml files in %s; those of the project are in deploy/examples/fio", dir)
	}
	var all []Workload
	for _, file := range files {
		w, err := loadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, w)
	}
	return all, nil
}

func loadFile(file string) (Workload, error) {
	w := Workload{Name: strings.TrimSuffix(filepath.Base(file), ".yaml")}
	data, err := os.ReadFile(file)
	if err != nil {
		return w, err
	}
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return w, w.check()
		}
		if err == nil {
			err = w.add(document)
		}
		if err != nil {
			return w, err
		}
	}
}

// add adds a document of the manifest.
func (w *Workload) add(document []byte) error {
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(document, &head); err != nil {
		return err
	}
	switch head.Kind {
	case "PersistentVolumeClaim":
		return yaml.UnmarshalStrict(document, &w.Claim)
	case "Job":
		return yaml.UnmarshalStrict(document, &w.Job)
	}
	return fmt.Errorf("%s %q is neither a claim nor a Job", head.APIVersion, head.Kind)
}

func (w *Workload) check() error {
	pod := w.Job.Spec.Template.Spec
	switch {
	case w.Claim.Name == "":
		return errors.New("it has no PersistentVolumeClaim")
	case w.Job.Name == "" || len(pod.Containers) != 1:
		return errors.New("it has no Job with one container")
	}
	for _, v := range pod.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == w.Claim.Name {
			return nil
		}
	}
	return fmt.Errorf("the Job does not use claim %s", w.Claim.Name)
}
