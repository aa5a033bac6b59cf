package chart

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

const (
	repository = "../../../.."
	chartDir   = repository + "/charts/nvfs-csi"
)

var update = flag.Bool("update", false, "rewrite golden files, deploy/ and the chart's README")

// compare compares with a file, or rewrites it.
func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what the chart renders: %s\nrun \"make chart\", and look at the difference before you commit it", file, firstDifference(string(want), got))
	}
}

func firstDifference(want, got string) string {
	wants, gots := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(wants), len(gots)) {
		if wants[i] != gots[i] {
			return "line " + strconv.Itoa(i+1) + ": has " + wants[i] + ", rendered " + gots[i]
		}
	}
	return "it has " + strconv.Itoa(len(wants)) + " lines, rendered are " + strconv.Itoa(len(gots))
}

func render(t *testing.T, o Options) []string {
	t.Helper()
	documents, err := Render(chartDir, o)
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

// values reads values as a user would write them.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestLint(t *testing.T) {
	result := lint.All(chartDir, nil, "nvfs-csi", true)
	for _, m := range result.Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

var prometheus = []string{"monitoring.coreos.com/v1"}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents := render(t, Options{Values: values(t, string(text)), Hooks: true, APIVersions: prometheus})
		compare(t, strings.TrimSuffix(file, ".values.yaml")+".golden.yaml", strings.Join(documents, "---\n"))
	}
}

func TestDeployAgrees(t *testing.T) {
	for file, c := range map[string]struct{ comment, values string }{
		"nvfs-csi.yaml":          {"For nodes with persistent memory.", "{}"},
		"nvfs-csi-emulated.yaml": {"Directories on a tmpfs stand in for persistent memory.", "{emulated: {enabled: true}}"},
	} {
		text, err := Plain(chartDir, c.comment, Options{Values: values(t, c.values)})
		if err != nil {
			t.Fatal(err)
		}
		compare(t, filepath.Join(repository, "deploy", file), text)
	}
}

func TestReadme(t *testing.T) {
	table, err := ValuesTable(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/README.md.in")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, chartDir+"/README.md", strings.Replace(string(text), "TABLE\n", table, 1))
}

func TestSchemaRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"an unknown key":               "{nodes: {}}",
		"an unknown key further down":  "{node: {toleration: []}}",
		"a relative directory":         "{kubeletDir: var/lib/kubelet}",
		"a directory with a slash":     "{kubeletDir: /var/lib/kubelet/}",
		"a port out of range":          "{node: {httpPort: 70000}}",
		"no replica":                   "{controller: {replicas: 0}}",
		"a time without a unit":        "{provisioner: {timeout: '30'}}",
		"a region without a size":      "{emulated: {enabled: true, regions: [{name: a, numa: 0}]}}",
		"emulation without a region":   "{emulated: {enabled: true, regions: []}}",
		"a class without a name":       "{storageClasses: [{parameters: {}}]}",
		"an unknown class parameter":   "{storageClasses: [{name: a, parameters: {flushmode: nt}}]}",
		"a cache mode that is no mode": "{storageClasses: [{name: a, parameters: {cacheMode: none}}]}",
		"a digest that is none":        "{image: {digest: latest}}",
		"a namespace that is none":     "{numa: {alignment: {excludedNamespaces: ['A b']}}}",
		"an unknown update strategy":   "{node: {updateStrategy: {type: Recreate}}}",
	} {
		if _, err := Render(chartDir, Options{Values: values(t, text)}); err == nil {
			t.Errorf("%s is accepted: %s", name, text)
		}
	}
}

// object is what the tests look at.
type object struct {
	Kind     string
	Metadata struct {
		Name      string
		Namespace string
		Labels    map[string]string
	}
	Spec struct {
		Template struct {
			Spec struct {
				ServiceAccountName string            `yaml:"serviceAccountName"`
				PriorityClassName  string            `yaml:"priorityClassName"`
				NodeSelector       map[string]string `yaml:"nodeSelector"`
				Containers         []struct {
					Name            string
					Image           string
					Args            []string
					SecurityContext struct {
						Privileged             bool
						ReadOnlyRootFilesystem bool `yaml:"readOnlyRootFilesystem"`
						Capabilities           struct{ Drop []string }
						SeccompProfile         struct{ Type string } `yaml:"seccompProfile"`
					} `yaml:"securityContext"`
				}
			}
		}
	}
}

func objects(t *testing.T, o Options) []object {
	t.Helper()
	var all []object
	for _, document := range render(t, o) {
		var obj object
		if err := yaml.Unmarshal([]byte(document), &obj); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		all = append(all, obj)
	}
	return all
}

func kinds(all []object) []string {
	var names []string
	for _, o := range all {
		names = append(names, o.Kind)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestOnlyWhatMountsIsPrivileged(t *testing.T) {
	privileged := map[string]bool{}
	for _, o := range objects(t, Options{Hooks: true}) {
		for _, c := range o.Spec.Template.Spec.Containers {
			s := c.SecurityContext
			if !s.ReadOnlyRootFilesystem {
				t.Errorf("container %s of %s %s can write to its root filesystem", c.Name, o.Kind, o.Metadata.Name)
			}
			if s.Privileged {
				privileged[c.Name] = true
			} else if !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) || s.SeccompProfile.Type != "RuntimeDefault" {
				t.Errorf("container %s of %s %s keeps capabilities or has no seccomp profile", c.Name, o.Kind, o.Metadata.Name)
			}
		}
	}
	if got := slices.Sorted(maps.Keys(privileged)); !slices.Equal(got, []string{"driver", "mountd"}) {
		t.Errorf("privileged are %v", got)
	}
}

func TestKubeletDirIsUsedEverywhere(t *testing.T) {
	for _, document := range render(t, Options{Values: values(t, "{kubeletDir: /opt/kubelet}"), Hooks: true}) {
		if strings.Contains(document, "/var/lib/kubelet") {
			t.Errorf("/var/lib/kubelet in\n%s", document)
		}
	}
}

func TestPodMonitorNeedsItsCRD(t *testing.T) {
	if slices.Contains(kinds(objects(t, Options{})), "PodMonitor") {
		t.Error("a PodMonitor is made where its CRD is missing")
	}
	if !slices.Contains(kinds(objects(t, Options{APIVersions: prometheus})), "PodMonitor") {
		t.Error("no PodMonitor is made where its CRD exists")
	}
}

func TestDashboard(t *testing.T) {
	file, err := os.ReadFile(chartDir + "/dashboards/nvfs-csi.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range render(t, Options{Values: values(t, "{dashboard: {enabled: true}}")}) {
		var m struct{ Data map[string]string }
		if err := yaml.Unmarshal([]byte(document), &m); err != nil {
			t.Fatal(err)
		}
		if got, ok := m.Data["nvfs-csi.json"]; ok {
			if !json.Valid([]byte(got)) || strings.TrimSpace(got) != strings.TrimSpace(string(file)) {
				t.Errorf("the dashboard in the ConfigMap is not the file: %s", firstDifference(string(file), got))
			}
			return
		}
	}
	t.Error("there is no ConfigMap with the dashboard")
}

func TestEmulatedRunsOnAnyNode(t *testing.T) {
	for enabled, want := range map[string]bool{"false": true, "true": false} {
		for _, o := range objects(t, Options{Values: values(t, "{emulated: {enabled: "+enabled+"}}")}) {
			if _, got := o.Spec.Template.Spec.NodeSelector["feature.node.kubernetes.io/memory-nv.dax"]; o.Kind == "DaemonSet" && got != want {
				t.Errorf("emulated %s: %s wants the label of persistent memory: %v", enabled, o.Metadata.Name, got)
			}
		}
	}
}

func TestNamespacedObjectsAreInTheNamespaceOfTheRelease(t *testing.T) {
	clusterWide := []string{"CSIDriver", "ClusterRole", "ClusterRoleBinding", "StorageClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingWebhookConfiguration"}
	for _, o := range objects(t, Options{Hooks: true, APIVersions: prometheus}) {
		want := "nvfs-csi"
		if slices.Contains(clusterWide, o.Kind) {
			want = ""
		}
		if o.Metadata.Namespace != want {
			t.Errorf("%s %s has namespace %q, want %q", o.Kind, o.Metadata.Name, o.Metadata.Namespace, want)
		}
		for _, label := range []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version"} {
			if o.Metadata.Labels[label] == "" {
				t.Errorf("%s %s has no label %s", o.Kind, o.Metadata.Name, label)
			}
		}
	}
}

func TestMountdHasItsOwnImage(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                 "localhost/nvfs-csi:0.1.0",
		"{image: {tag: v2}}": "localhost/nvfs-csi:v2",
		"{image: {tag: v2}, mountd: {image: {tag: v1}}}": "localhost/nvfs-csi:v1",
	} {
		for _, o := range objects(t, Options{Values: values(t, text)}) {
			for _, c := range o.Spec.Template.Spec.Containers {
				if c.Name == "mountd" && c.Image != want {
					t.Errorf("%s: image of mountd is %s, want %s", text, c.Image, want)
				}
			}
		}
	}
}

func TestNotesNameTheNextCommand(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                          "kubectl label node NODE feature.node.kubernetes.io/memory-nv.dax=true",
		"{emulated: {enabled: true}}": "Nothing on a tmpfs survives a reboot",
	} {
		notes, err := Notes(chartDir, Options{Values: values(t, text)})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(notes, want) || !strings.Contains(notes, "kubectl apply -f -") {
			t.Errorf("%s: the notes lack %q or the first claim:\n%s", text, want, notes)
		}
	}
}

// TestAlignment: the device plugin and the webhook go together, or a pod would wait
// for a resource that nobody offers; without them nothing of them is left.
func TestAlignment(t *testing.T) {
	for text, want := range map[string]bool{"{}": true, "{numa: {alignment: {enabled: false}}}": false} {
		all := strings.Join(render(t, Options{Values: values(t, text)}), "---\n")
		for _, part := range []string{"--device-plugin", "/var/lib/kubelet/device-plugins", "--webhook-address=:9814", "kind: MutatingWebhookConfiguration",
			"kind: Secret", "resources: [secrets]", "resources: [mutatingwebhookconfigurations]", "port: 9814"} {
			if got := strings.Contains(all, part); got != want {
				t.Errorf("%s: %q is there: %v", text, part, got)
			}
		}
	}
	text := strings.Join(render(t, Options{Values: values(t, "{numa: {alignment: {excludedNamespaces: [batch]}, nodeAnnotation: false}}")}), "---\n")
	if !strings.Contains(text, `["kube-system","nvfs-csi","batch"]`) {
		t.Error("not all namespaces are excluded")
	}
	if strings.Contains(text, "--annotate-nodes") || strings.Contains(text, "controller-nodes") || strings.Contains(text, "[list, watch, patch]") {
		t.Error("without the annotation the controller may patch nodes")
	}
}
