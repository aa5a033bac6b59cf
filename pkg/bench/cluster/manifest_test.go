package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// The examples are what users copy and what bench cluster runs.
func TestExamples(t *testing.T) {
	workloads, err := Load("../../../deploy/examples/fio")
	if err != nil {
		t.Fatal(err)
	}
	if len(workloads) != 4 {
		t.Errorf("there are %d workloads, want random, sequential, log and jobs48", len(workloads))
	}
	for _, w := range workloads {
		if w.Claim.Name != "fio-"+w.Name || w.Job.Name != "fio-"+w.Name {
			t.Errorf("%s: claim %s, Job %s", w.Name, w.Claim.Name, w.Job.Name)
		}
		if *w.Claim.Spec.StorageClassName != "nvfs" || w.Job.Spec.BackoffLimit == nil || *w.Job.Spec.BackoffLimit != 0 {
			t.Errorf("%s: of another class, or repeated when it fails", w.Name)
		}
		container := w.Job.Spec.Template.Spec.Containers[0]
		if len(container.Env) != 1 || container.Env[0].Name != runtimeVariable {
			t.Errorf("%s: its environment is %v", w.Name, container.Env)
		}
		script := container.Command[len(container.Command)-1]
		if !strings.Contains(script, "--output-format=json") || !strings.Contains(script, `--runtime="$RUNTIME"`) {
			t.Errorf("%s: %s", w.Name, script)
		}
	}
	if driver.Name != "csi.nvfs.dev" {
		t.Error("the driver's name stands in the examples")
	}
}

func TestManifestsThatCannotBeRun(t *testing.T) {
	const (
		claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\n"
		job   = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{name: fio}], volumes: [{name: data, persistentVolumeClaim: {claimName: c}}]}}}\n"
	)
	for name, c := range map[string]struct{ text, says string }{
		"good":          {claim + "---\n" + job, ""},
		"no claim":      {job, "no PersistentVolumeClaim"},
		"no job":        {claim, "no Job"},
		"other claim":   {strings.ReplaceAll(claim, "name: c", "name: d") + "---\n" + job, "does not use claim d"},
		"other kind":    {claim + "---\napiVersion: v1\nkind: Secret\n", "neither a claim nor a Job"},
		"unknown field": {claim + "specs: {}\n---\n" + job, "unknown field"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "w.yaml"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("an empty directory was accepted")
	}
}
