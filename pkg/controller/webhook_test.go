package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// stock is a cluster as far as the webhook looks at it: what is watched, and what
// only the API server knows.
type stock struct {
	claims, volumes, classes cache.Indexer
	server                   *apiServer
}

func newStock(t *testing.T) *stock {
	index := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	s := &stock{index(), index(), index(), newAPIServer(t)}
	for _, c := range []*storagev1.StorageClass{class("any"), class("spread", driver.KeyNUMAPolicy, driver.PolicySpread), class("numa0", driver.KeyNUMANode, "0"), class("numa1", driver.KeyNUMANode, "1"),
		class("bad", "flushmode", "nt"), foreign("other")} {
		s.add(t, s.classes, c)
	}
	for name, c := range map[string]struct{ class, volume string }{
		"new0": {"numa0", ""}, "new1": {"numa1", ""}, "newany": {"any", ""}, "newspread": {"spread", ""}, "newbad": {"bad", ""}, "newother": {"other", ""}, "newnoclass": {"", ""},
		"on1": {"any", "pv-1"}, "also1": {"spread", "pv-1b"}, "on0": {"any", "pv-0"}, "silent": {"any", "pv-silent"}, "labelled": {"any", "pv-labelled"}, "ofother": {"other", "pv-other"}, "lost": {"any", "pv-lost"},
	} {
		pvc := claim(c.class, "1Gi")
		pvc.Name, pvc.Spec.VolumeName = name, c.volume
		s.add(t, s.claims, pvc)
	}
	for name, numa := range map[string]string{"pv-1": "1", "pv-1b": "1", "pv-0": "0", "pv-silent": "", "pv-labelled": ""} {
		pv := volume(name, name, "n1")
		if numa != "" {
			pv.Spec.CSI.VolumeAttributes = map[string]string{driver.NUMANodeKey: numa}
		}
		if name == "pv-labelled" {
			pv.Labels = map[string]string{driver.NUMANodeKey: "1"}
		}
		s.add(t, s.volumes, pv)
	}
	s.add(t, s.volumes, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-other"}})
	return s
}

func foreign(name string) *storagev1.StorageClass {
	c := class(name)
	c.Provisioner = "example.com/other"
	return c
}

func (s *stock) add(t *testing.T, index cache.Indexer, object any) {
	t.Helper()
	if err := index.Add(object); err != nil {
		t.Fatal(err)
	}
}

func (s *stock) handler() (*podWebhook, *controllerMetrics) {
	p := &claimPlacer{client: s.server.client(), claims: corelisters.NewPersistentVolumeClaimLister(s.claims),
		volumes: corelisters.NewPersistentVolumeLister(s.volumes), classes: storagelisters.NewStorageClassLister(s.classes)}
	m := newMetrics("test")
	return &podWebhook{place: p.place, metrics: m}, m
}

// user is a pod with a container for each list of claims, which it mounts. A name
// with "+" is a generic ephemeral volume of that class; "-" mounts nothing.
func user(containers ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "user-"}}
	for i, list := range containers {
		c := corev1.Container{Name: "c" + strconv.Itoa(i), Image: "i"}
		for _, name := range strings.Fields(list) {
			v := corev1.Volume{Name: "v-" + strings.TrimPrefix(name, "+")}
			switch class, ephemeral := strings.CutPrefix(name, "+"); {
			case name == "-":
				continue
			case ephemeral:
				v.Ephemeral = &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class}}}
			default:
				v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
			}
			if !slices.ContainsFunc(pod.Spec.Volumes, func(have corev1.Volume) bool { return have.Name == v.Name }) {
				pod.Spec.Volumes = append(pod.Spec.Volumes, v)
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

// post sends a review to a handler and returns the answer.
func post(t *testing.T, h http.Handler, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, WebhookPath, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &answer); w.Code != http.StatusOK || err != nil {
		t.Fatalf("HTTP %d, %v: %s", w.Code, err, w.Body)
	}
	if answer.Kind != "AdmissionReview" || answer.APIVersion != "admission.k8s.io/v1" || answer.Response.UID != req.UID || !answer.Response.Allowed {
		t.Fatalf("answer %+v, %+v", answer.TypeMeta, answer.Response)
	}
	return answer.Response
}

func requestFor(raw []byte) *admissionv1.AdmissionRequest {
	return &admissionv1.AdmissionRequest{UID: "u1", Namespace: "default", Operation: admissionv1.Create,
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Object: runtime.RawExtension{Raw: raw}}
}

// mutated returns the pod as the API server would have it then, and the warnings.
func mutated(t *testing.T, h http.Handler, pod *corev1.Pod) (*corev1.Pod, []string) {
	t.Helper()
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	response := post(t, h, requestFor(raw))
	after := &corev1.Pod{}
	if err := json.Unmarshal(patched(t, raw, response.Patch), after); err != nil {
		t.Fatal(err)
	}
	return after, response.Warnings
}

// patched applies operations that add. As RFC 6902 has it, all but the last element
// of a path must be there.
func patched(t *testing.T, raw, patch []byte) []byte {
	t.Helper()
	if len(patch) == 0 {
		return raw
	}
	var operations []operation
	var document any
	if err := errors.Join(json.Unmarshal(patch, &operations), json.Unmarshal(raw, &document)); err != nil {
		t.Fatal(err)
	}
	for _, o := range operations {
		at := document
		path := strings.Split(o.Path, "/")[1:]
		for i, element := range path {
			element = strings.NewReplacer("~1", "/", "~0", "~").Replace(element)
			switch parent := at.(type) {
			case map[string]any:
				if i == len(path)-1 {
					parent[element] = o.Value
				}
				at = parent[element]
			case []any:
				n, err := strconv.Atoi(element)
				if err != nil || n >= len(parent) {
					t.Fatalf("%s: no element %s", o.Path, element)
				}
				at = parent[n]
			default:
				t.Fatalf("%s does not exist up to %s in %s", o.Path, element, raw)
			}
		}
	}
	result, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// asks describes which containers ask for what: "numa-1 - numa-1".
func asks(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	var list []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		what := "-"
		for name, n := range c.Resources.Limits {
			if _, ok := driver.NUMANodeOfResource(string(name)); !ok {
				continue
			}
			what = strings.TrimPrefix(string(name), "csi.nvfs.dev/")
			if request := c.Resources.Requests[name]; n.Value() != 1 || request.Value() != 1 {
				t.Errorf("container %s: limit %s, request %s", c.Name, n.String(), request.String())
			}
		}
		list = append(list, what)
	}
	return strings.Join(list, " ")
}

// decided returns how many pods the metric says were decided about in that way.
func decided(t *testing.T, m *controllerMetrics, decision string) float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "nvfs_csi_webhook_pods_total" && metric.GetLabel()[0].GetValue() == decision {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestWebhookDecisions(t *testing.T) {
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		want    string // of each container
		warning string
		metric  string
	}{
		"class of a NUMA node":                  {user("new1"), "numa-1", "", decisionAligned},
		"class of NUMA node 0":                  {user("new0"), "numa-0", "", decisionAligned},
		"bound volume":                          {user("on1"), "numa-1", "", decisionAligned},
		"bound volume that only has a label":    {user("labelled"), "numa-1", "", decisionAligned},
		"only containers that mount it":         {user("-", "new1", "-", "on1"), "- numa-1 - numa-1", "", decisionAligned},
		"two volumes on one NUMA node":          {user("on1 also1 new1"), "numa-1", "", decisionAligned},
		"two volumes on two, in one container":  {user("on0 on1"), "-", "claim on0 on NUMA node 0; claim on1 on NUMA node 1", decisionSeveral},
		"two volumes on two, in two containers": {user("on0", "on1"), "- -", "use volumes of one numaNode", decisionSeveral},
		"a class and a bound volume on two":     {user("on0", "new1"), "- -", "several NUMA nodes", decisionSeveral},
		"not made yet, any":                     {user("newany"), "-", "not known yet for claim newany (StorageClass any lets the driver choose)", decisionUndecided},
		"not made yet, spread":                  {user("newspread"), "-", "StorageClass spread lets the driver choose", decisionUndecided},
		"not made yet beside a bound one":       {user("newany on1"), "numa-1", "claim newany", decisionAligned},
		"class with a mistake":                  {user("newbad"), "-", "StorageClass bad is not valid", decisionUndecided},
		"bound volume that does not say":        {user("silent"), "-", "PersistentVolume pv-silent does not say", decisionUndecided},
		"class of another driver":               {user("newother"), "-", "", decisionOthers},
		"volume of another driver":              {user("ofother"), "-", "", decisionOthers},
		"a claim without a class":               {user("newnoclass"), "-", "", decisionOthers},
		"a claim that does not exist":           {user("nothere"), "-", "", decisionOthers},
		"a volume that does not exist":          {user("lost"), "-", "volume pv-lost of claim lost", decisionFailed},
		"no claims":                             {user("-"), "-", "", decisionOthers},
		"ephemeral volume of a NUMA node":       {user("+numa1"), "numa-1", "", decisionAligned},
		"ephemeral volume of any":               {user("+any"), "-", "the ephemeral volume v-any", decisionUndecided},
		"ephemeral volume of nobody's class":    {user("+nothere"), "-", "", decisionOthers},
		"ephemeral and bound on two":            {user("+numa0 on1"), "-", "several NUMA nodes", decisionSeveral},
	} {
		h, m := newStock(t).handler()
		got, warnings := mutated(t, h, c.pod)
		if asks := asks(t, got); asks != c.want {
			t.Errorf("%s: containers ask for %q, want %q", name, asks, c.want)
		}
		all := strings.Join(warnings, "\n")
		if (c.warning == "") != (all == "") || !strings.Contains(all, c.warning) {
			t.Errorf("%s: warnings %q, want %q", name, all, c.warning)
		}
		if n := decided(t, m, c.metric); n != 1 {
			t.Errorf("%s: metric %s is %v", name, c.metric, n)
		}
		// The pod says what was decided, and else is as it was.
		annotation, said := got.Annotations[AlignmentAnnotation]
		speaks := c.metric == decisionAligned || c.metric == decisionSeveral || c.metric == decisionUndecided
		if said != speaks || said && strings.HasPrefix(annotation, "not aligned") == (c.metric == decisionAligned) {
			t.Errorf("%s: annotation %q", name, annotation)
		}
		if len(got.Spec.Volumes) != len(c.pod.Spec.Volumes) || len(got.Spec.Containers) != len(c.pod.Spec.Containers) || got.GenerateName != c.pod.GenerateName {
			t.Errorf("%s: the pod has changed: %+v", name, got.Spec)
		}
	}
}

// TestWebhookKeepsWhatAPodHas: its annotations, limits and requests stay.
func TestWebhookKeepsWhatAPodHas(t *testing.T) {
	h, _ := newStock(t).handler()
	pod := user("on1")
	pod.Annotations = map[string]string{"a/b": "c"}
	two := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	for name, resources := range map[string]corev1.ResourceRequirements{
		"nothing":  {},
		"limits":   {Limits: two},
		"requests": {Requests: two},
		"both":     {Limits: two, Requests: two},
		"a claim":  {Claims: []corev1.ResourceClaim{{Name: "gpu"}}, Limits: two},
	} {
		pod.Spec.Containers[0].Resources = resources
		got, _ := mutated(t, h, pod)
		after := got.Spec.Containers[0].Resources
		if asks(t, got) != "numa-1" || got.Annotations["a/b"] != "c" || after.Limits.Cpu().Cmp(*resources.Limits.Cpu()) != 0 ||
			after.Requests.Cpu().Cmp(*resources.Requests.Cpu()) != 0 || len(after.Claims) != len(resources.Claims) {
			t.Errorf("%s: %+v, annotations %v", name, after, got.Annotations)
		}
	}
}

func TestWebhookWithoutResourcesInTheObject(t *testing.T) {
	h, _ := newStock(t).handler()
	raw := []byte(`{"metadata":{"name":"p"},"spec":{"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"on1"}}],"containers":[{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v"}]}]}}`)
	var pod corev1.Pod
	if err := json.Unmarshal(patched(t, raw, post(t, h, requestFor(raw)).Patch), &pod); err != nil || asks(t, &pod) != "numa-1" {
		t.Errorf("%v, %+v", err, pod.Spec.Containers)
	}
}

// TestWebhookAndRawBlockAndInitContainers: a device counts like a mount, and an
// init container like any other.
func TestWebhookAndRawBlockAndInitContainers(t *testing.T) {
	h, _ := newStock(t).handler()
	pod := user("on1", "-")
	pod.Spec.Containers[1].VolumeDevices = []corev1.VolumeDevice{{Name: "v-on1", DevicePath: "/dev/x"}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "i0"}, {Name: "i1", VolumeMounts: []corev1.VolumeMount{{Name: "v-on1", MountPath: "/v"}}}}
	if got, _ := mutated(t, h, pod); asks(t, got) != "- numa-1 numa-1 numa-1" {
		t.Errorf("containers ask for %q", asks(t, got))
	}
}

func TestWebhookLeavesPodsThatAsk(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod, corev1.ResourceList){
		"a container":     func(p *corev1.Pod, list corev1.ResourceList) { p.Spec.Containers[1].Resources.Limits = list },
		"a request alone": func(p *corev1.Pod, list corev1.ResourceList) { p.Spec.Containers[1].Resources.Requests = list },
		"an init container": func(p *corev1.Pod, list corev1.ResourceList) {
			p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: list}}}
		},
	} {
		h, m := newStock(t).handler()
		pod := user("on1", "-")
		change(pod, corev1.ResourceList{"csi.nvfs.dev/numa-0": resource.MustParse("1")})
		raw, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		if response := post(t, h, requestFor(raw)); len(response.Patch) > 0 || len(response.Warnings) > 0 {
			t.Errorf("%s: patch %s, warnings %v", name, response.Patch, response.Warnings)
		}
		if decided(t, m, decisionAsks) != 1 {
			t.Errorf("%s: not counted", name)
		}
	}
}

// TestWebhookAsksTheAPIServer: a claim that was made a moment before its pod, and a
// volume and class likewise, are not watched yet.
func TestWebhookAsksTheAPIServer(t *testing.T) {
	s := newStock(t)
	h, _ := s.handler()
	pvc := claim("fresh", "1Gi")
	pvc.Name = "fresh"
	bound := claim("any", "1Gi")
	bound.Name, bound.Spec.VolumeName = "bound", "pv-fresh"
	pv := volume("pv-fresh", "h", "n1")
	pv.Spec.CSI.VolumeAttributes = map[string]string{driver.NUMANodeKey: "0"}
	s.server.set("/api/v1/namespaces/default/persistentvolumeclaims/fresh", pvc)
	s.server.set("/api/v1/namespaces/default/persistentvolumeclaims/bound", bound)
	s.server.set("/api/v1/persistentvolumes/pv-fresh", pv)
	s.server.set("/apis/storage.k8s.io/v1/storageclasses/fresh", class("fresh", driver.KeyNUMANode, "1"))
	for claim, want := range map[string]string{"fresh": "numa-1", "bound": "numa-0"} {
		if got, warnings := mutated(t, h, user(claim)); asks(t, got) != want {
			t.Errorf("%s: containers ask for %q, warnings %v", claim, asks(t, got), warnings)
		}
	}
}

// TestWebhookDefaultClass: an ephemeral volume that names no class gets the default
// one, of several the newest.
func TestWebhookDefaultClass(t *testing.T) {
	s := newStock(t)
	h, _ := s.handler()
	pod := user("+numa0")
	pod.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = nil
	if got, _ := mutated(t, h, pod); asks(t, got) != "-" {
		t.Errorf("without a default class: %q", asks(t, got))
	}
	for i, name := range []string{"old", "young"} {
		c := class(name, driver.KeyNUMANode, strconv.Itoa(i))
		c.Annotations = map[string]string{defaultClassAnnotation: "true"}
		c.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
		s.add(t, s.classes, c)
	}
	if got, _ := mutated(t, h, pod); asks(t, got) != "numa-1" {
		t.Errorf("with two default classes: %q", asks(t, got))
	}
	none := ""
	pod.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = &none
	if got, _ := mutated(t, h, pod); asks(t, got) != "-" {
		t.Errorf("a class that is explicitly none: %q", asks(t, got))
	}
}

// TestWebhookAdmitsWhateverHappens: it never keeps a pod from being made.
func TestWebhookAdmitsWhateverHappens(t *testing.T) {
	broken := &podWebhook{metrics: newMetrics("test"), place: func(context.Context, string, *corev1.Volume) (placement, error) {
		return placement{}, errors.New("the API server does not answer")
	}}
	raw, err := json.Marshal(user("on1"))
	if err != nil {
		t.Fatal(err)
	}
	if response := post(t, broken, requestFor(raw)); len(response.Patch) > 0 || len(response.Warnings) != 1 || !strings.Contains(response.Warnings[0], "does not answer") {
		t.Errorf("patch %s, warnings %v", response.Patch, response.Warnings)
	}
	if response := post(t, broken, requestFor([]byte(`{"spec":3}`))); len(response.Patch) > 0 || len(response.Warnings) != 1 {
		t.Errorf("no pod: patch %s, warnings %v", response.Patch, response.Warnings)
	}
	for name, change := range map[string]func(*admissionv1.AdmissionRequest){
		"an update":      func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update },
		"a subresource":  func(r *admissionv1.AdmissionRequest) { r.SubResource = "binding" },
		"something else": func(r *admissionv1.AdmissionRequest) { r.Resource.Resource = "services" },
	} {
		req := requestFor(raw)
		change(req)
		if response := post(t, broken, req); len(response.Patch) > 0 || len(response.Warnings) > 0 {
			t.Errorf("%s: %+v", name, response)
		}
	}
}

// TestWebhookGivesUpInTime: the API server waits for two seconds, and whoever is
// asked is told to answer before.
func TestWebhookGivesUpInTime(t *testing.T) {
	var left time.Duration
	h := &podWebhook{metrics: newMetrics("test"), place: func(ctx context.Context, _ string, _ *corev1.Volume) (placement, error) {
		deadline, ok := ctx.Deadline()
		if !ok {
			t.Error("there is no deadline")
		}
		left = time.Until(deadline)
		return placement{}, context.DeadlineExceeded
	}}
	raw, err := json.Marshal(user("on1"))
	if err != nil {
		t.Fatal(err)
	}
	post(t, h, requestFor(raw))
	if left >= 2*time.Second {
		t.Errorf("%s are left", left)
	}
}

func TestWebhookRefusesWhatIsNoReview(t *testing.T) {
	h, _ := newStock(t).handler()
	for name, c := range map[string]struct {
		media, body string
		code        int
	}{
		"another media type": {"application/yaml", "{}", http.StatusUnsupportedMediaType},
		"no JSON":            {"application/json", "x", http.StatusBadRequest},
		"no request":         {"application/json", `{"kind":"AdmissionReview"}`, http.StatusBadRequest},
		"far too long":       {"application/json", strings.Repeat(" ", maxReview+1), http.StatusBadRequest},
	} {
		r := httptest.NewRequest(http.MethodPost, WebhookPath, strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.media)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.code {
			t.Errorf("%s: HTTP %d: %s", name, w.Code, w.Body)
		}
	}
}
