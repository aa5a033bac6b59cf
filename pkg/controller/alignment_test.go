package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// used is the report of a node on which one pod uses volumes on these NUMA nodes.
func used(chosen, asks bool, locality driver.Locality, numaNodes ...int) driver.Report {
	report := driver.Report{Node: "n1"}
	for i, node := range numaNodes {
		report.Volumes = append(report.Volumes, driver.VolumeReport{ID: fmt.Sprint(i), NUMANode: &node, NUMAChosen: chosen,
			Pods: []driver.PodReport{{Namespace: "team", Name: "db", UID: "u1", Asks: asks, Locality: locality}}})
	}
	return report
}

func TestFindingsOfPods(t *testing.T) {
	volumes := []*corev1.PersistentVolume{volume("a", "0", "n1"), volume("b", "1", "n1")}
	for name, c := range map[string]struct {
		report  driver.Report
		webhook bool
		reason  string
		says    string
	}{
		"beside it":                               {used(true, true, driver.LocalityLocal, 1), true, "", ""},
		"beside it without asking":                {used(false, false, driver.LocalityLocal, 1), true, "", ""},
		"remote, and asked":                       {used(false, true, driver.LocalityRemote, 1), true, ReasonRemoteMemory, "topologyManagerPolicy restricted or single-numa-node"},
		"remote, and has not asked":               {used(false, false, driver.LocalityRemote, 1), false, ReasonRemoteMemory, "Delete the pod"},
		"shared, the webhook was not heard":       {used(false, false, driver.LocalityShared, 1), true, ReasonNotAligned, "claim claim-of-a, NUMA node 1 of node n1"},
		"shared, there is no webhook":             {used(false, false, driver.LocalityShared, 1), false, "", ""},
		"shared, no webhook, but the class wants": {used(true, false, driver.LocalityShared, 1), false, ReasonNotAligned, "asks for csi.nvfs.dev/numa-1"},
		"shared although it asks, class wants it": {used(true, true, driver.LocalityShared, 1), true, ReasonNotAligned, "QoS class Guaranteed"},
		"shared although it asks":                 {used(false, true, driver.LocalityShared, 1), true, "", ""},
		"unknown, the class wants it":             {used(true, false, driver.LocalityUnknown, 1), true, ReasonNotAligned, "does not ask"},
		"unknown":                                 {used(false, false, driver.LocalityUnknown, 1), true, "", ""},
		"two volumes on one NUMA node, remote":    {used(false, true, driver.LocalityRemote, 1, 1), true, ReasonRemoteMemory, "claim claim-of-a"},
		"two volumes on two":                      {used(true, false, driver.LocalityShared, 0, 1), true, ReasonSeveralNUMANodes, "claim claim-of-a on NUMA node 0, claim claim-of-b on NUMA node 1"},
		"memory of an unknown node":               {used(false, false, driver.LocalityUnknown, -1), true, "", ""},
	} {
		found := findingsOfPods([]driver.Report{c.report}, volumes, c.webhook)
		switch {
		case c.reason == "" && len(found) > 0:
			t.Errorf("%s: %+v", name, found)
		case c.reason != "" && (len(found) != 1 || found[0].reason != c.reason || !strings.Contains(found[0].message, c.says)):
			t.Errorf("%s: %+v, want %s with %q", name, found, c.reason, c.says)
		case c.reason != "" && (found[0].object.Kind != "Pod" || found[0].object.Namespace != "team" || found[0].object.Name != "db" || found[0].object.UID != "u1"):
			t.Errorf("%s: on %+v", name, found[0].object)
		}
	}
}

// refused is a pod that a kubelet has refused.
func refused(name, owner, resourceName string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)},
		Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse("1")}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: topologyAffinityError}}
	if owner != "" {
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID("uid-" + owner), Controller: &yes}}
	}
	return pod
}

// TestRefusedPods: a Deployment makes pod after pod. Its ReplicaSet is told once,
// whatever pods come and go.
func TestRefusedPods(t *testing.T) {
	const numa1 = "csi.nvfs.dev/numa-1"
	recorder := record.NewFakeRecorder(100)
	now := time.Unix(0, 0)
	a := &announcer{recorder: recorder, now: func() time.Time { return now }, last: map[string]time.Time{}}
	var pods []*corev1.Pod
	for i := range 30 {
		pods = append(pods, refused(fmt.Sprintf("db-%d", i), "db", numa1))
		a.announce(findingsOfRefused(pods))
		now = now.Add(10 * time.Minute)
	}
	if len(recorder.Events) != 1 {
		t.Fatalf("%d events for 30 pods of one owner", len(recorder.Events))
	}
	event := <-recorder.Events
	for _, part := range []string{"Warning " + ReasonAlignmentRefused, "NUMA node 1", "node n1", "kubectl -n team delete pods --field-selector status.phase=Failed", "csi.nvfs.dev/numa-alignment=disabled"} {
		if !strings.Contains(event, part) {
			t.Errorf("the event lacks %q: %s", part, event)
		}
	}
	found := findingsOfRefused(append(pods, refused("alone", "", numa1), refused("other", "other", numa1)))
	if len(found) != 3 || found[0].object.Name != "alone" || found[0].object.Kind != "Pod" || found[1].object.Kind != "ReplicaSet" || found[1].object.APIVersion != "apps/v1" {
		t.Errorf("findings %+v", found)
	}
	evicted := refused("evicted", "db", numa1)
	evicted.Status.Reason = "Evicted"
	if found := findingsOfRefused([]*corev1.Pod{evicted, refused("gpu", "gpu", "example.com/gpu")}); len(found) != 0 {
		t.Errorf("findings on pods that are not ours: %+v", found)
	}
}

// TestPodsAreToldOnce: no event is repeated as long as the pod runs.
func TestPodsAreToldOnce(t *testing.T) {
	recorder := record.NewFakeRecorder(100)
	now := time.Unix(0, 0)
	a := &announcer{recorder: recorder, now: func() time.Time { return now }, last: map[string]time.Time{}}
	for range 10 {
		a.announce(findingsOfPods([]driver.Report{used(true, false, driver.LocalityShared, 1)}, nil, true))
		now = now.Add(repeatAfter)
	}
	if len(recorder.Events) != 1 || !strings.HasPrefix(<-recorder.Events, "Normal "+ReasonNotAligned) {
		t.Error("not one event that is no warning")
	}
}

// TestClaimsThatWaitForNobody: a claim is given back when its node has left the
// cluster, or has had no driver for longer than an upgrade takes.
func TestClaimsThatWaitForNobody(t *testing.T) {
	pending := func(node string) *corev1.PersistentVolumeClaim {
		c := claim("any", "1Gi")
		c.UID, c.Annotations = types.UID("on-"+node), map[string]string{selectedNodeAnnotation: node}
		return c
	}
	classes := []*storagev1.StorageClass{class("any"), foreign("other")}
	now := time.Unix(0, 0)
	s := newStuck()
	s.now = func() time.Time { return now }
	bound := pending("gone")
	bound.Status.Phase = corev1.ClaimBound
	others := pending("gone")
	*others.Spec.StorageClassName = "other"
	claims := []*corev1.PersistentVolumeClaim{pending("gone"), pending("bare"), pending("fine"), bound, others, claim("any", "1Gi")}
	look := func() string {
		var names []string
		for _, c := range s.look(claims, classes, map[string]bool{"bare": true, "fine": true}, map[string]bool{"fine": true}) {
			names = append(names, c.claim.Annotations[selectedNodeAnnotation])
		}
		return strings.Join(names, " ")
	}
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{0, ""}, {nodeGoneFor - time.Second, ""}, {time.Second, "gone"}, {driverGoneFor - nodeGoneFor - time.Second, "gone"}, {time.Second, "gone bare"}} {
		now = now.Add(step.after)
		if got := look(); got != step.want {
			t.Errorf("after %s: %q, want %q", now.Sub(time.Unix(0, 0)), got, step.want)
		}
	}
	// A driver that was away for a moment starts the clock anew.
	s.look(claims, classes, map[string]bool{"bare": true, "fine": true, "gone": true}, map[string]bool{"bare": true, "fine": true, "gone": true})
	if got := look(); got != "" {
		t.Errorf("%q after all were back", got)
	}
}

// nextPatch returns the next change that the API server was asked for.
func (s *apiServer) nextPatch() patch {
	s.t.Helper()
	select {
	case p := <-s.patches:
		return p
	case <-time.After(time.Minute):
		s.t.Fatal("nothing was changed")
		return patch{}
	}
}

// TestControllerKeepsClusterUpToDate: labels of volumes, annotations of nodes, and
// a claim whose node is gone.
func TestControllerKeepsClusterUpToDate(t *testing.T) {
	s, o := newCluster(t)
	o.AnnotateNodes = true
	pv := volume("pv-1", "1", "n1")
	pv.Spec.CSI.VolumeAttributes = map[string]string{driver.NUMANodeKey: "1"}
	labelled := volume("pv-2", "2", "n1")
	labelled.Spec.CSI.VolumeAttributes, labelled.Labels = map[string]string{driver.NUMANodeKey: "0"}, map[string]string{driver.NUMANodeKey: "0"}
	s.add(volumesPath, pv)
	s.add(volumesPath, labelled)
	stop := start(t, s, o)
	defer stop()
	seen := map[string]map[string]any{}
	for len(seen) < 2 {
		p := s.nextPatch()
		seen[p.path] = p.body["metadata"].(map[string]any)
	}
	if labels, ok := seen[volumesPath+"/pv-1"]["labels"].(map[string]any); !ok || labels[driver.NUMANodeKey] != "1" {
		t.Errorf("patches %v", seen)
	}
	annotations, ok := seen[nodesPath+"/n1"]["annotations"].(map[string]any)
	if want := `{"0":{"regions":1,"size":"512Mi","available":"100Mi","largestExtent":"100Mi"},"1":{"regions":1,"size":"512Mi","available":"200Mi","largestExtent":"200Mi"}}`; !ok || annotations[MemoryAnnotation] != want {
		t.Errorf("patches %v", seen)
	}
}

func TestClaimIsGivenBack(t *testing.T) {
	s := newAPIServer(t)
	w := &watcher{client: s.client(), metrics: newMetrics("test")}
	c := claim("any", "1Gi")
	c.ResourceVersion = "7"
	found, err := w.giveBack(t.Context(), []stuckClaim{{c, "Node n9 is not in the cluster any more."}})
	if err != nil || len(found) != 1 || found[0].reason != ReasonRescheduled || found[0].object.Kind != "PersistentVolumeClaim" {
		t.Fatalf("%v, %+v", err, found)
	}
	p := s.nextPatch()
	metadata := p.body["metadata"].(map[string]any)
	annotations := metadata["annotations"].(map[string]any)
	if value, there := annotations[selectedNodeAnnotation]; p.path != "/api/v1/namespaces/default/persistentvolumeclaims/data" || metadata["resourceVersion"] != "7" || !there || value != nil {
		t.Errorf("patch %+v", p)
	}
}

func TestRollUp(t *testing.T) {
	region := func(numa int, available uint64, unusable string) driver.RegionReport {
		return driver.RegionReport{NUMANode: numa, Size: 512 * mib, Available: available, LargestExtent: available / 2, Unusable: unusable}
	}
	got, err := memoryAnnotation([]driver.RegionReport{region(0, 100*mib, ""), region(0, 300*mib, ""), region(1, 8*mib, "no label area"), region(-1, 2*mib, "")})
	want := `{"0":{"regions":2,"size":"1Gi","available":"400Mi","largestExtent":"150Mi"},"unknown":{"regions":1,"size":"512Mi","available":"2Mi","largestExtent":"1Mi"}}`
	if err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if got, err := memoryAnnotation([]driver.RegionReport{region(1, 8*mib, "no label area")}); err != nil || got != "" {
		t.Errorf("nothing usable: %q, %v", got, err)
	}
}

func TestAnnotationsOfNodes(t *testing.T) {
	s := newAPIServer(t)
	w := &watcher{client: s.client()}
	reports := []driver.Report{{Node: "n1", Regions: twoNodes().reports[0].Regions}, {Node: "n2"}}
	right, err := memoryAnnotation(reports[0].Regions)
	if err != nil {
		t.Fatal(err)
	}
	annotations := map[string]string{"n1": right, "n2": "old", "silent": "kept", "left": "old", "never": ""}
	if more, err := w.annotate(t.Context(), reports, annotations, map[string]bool{"n1": true, "n2": true, "silent": true}); err != nil || more {
		t.Fatal(more, err)
	}
	for _, want := range []string{"left", "n2"} { // what is right, or just silent, stays
		p := s.nextPatch()
		value := p.body["metadata"].(map[string]any)["annotations"].(map[string]any)[MemoryAnnotation]
		if p.path != nodesPath+"/"+want || value != nil {
			t.Errorf("patch %+v, want the annotation of %s taken away", p, want)
		}
	}
	if len(s.patches) > 0 {
		t.Errorf("one more: %+v", <-s.patches)
	}
}

// TestChangesOfOneLookAreBounded: the first look of a new controller may find very
// much to change.
func TestChangesOfOneLookAreBounded(t *testing.T) {
	s := newAPIServer(t)
	w := &watcher{client: s.client()}
	var volumes []*corev1.PersistentVolume
	for i := range maxChanges + 1 {
		pv := volume(fmt.Sprintf("pv-%d", i), "h", "n1")
		pv.Spec.CSI.VolumeAttributes = map[string]string{driver.NUMANodeKey: "0"}
		volumes = append(volumes, pv)
	}
	if more, err := w.label(t.Context(), volumes); err != nil || !more || len(s.patches) != maxChanges {
		t.Errorf("%d changes, more %v, %v", len(s.patches), more, err)
	}
}

func TestStripKeepsWhatIsLookedAt(t *testing.T) {
	pv := volume("a", "1", "n1")
	pv.Spec.CSI.VolumeAttributes, pv.ManagedFields = map[string]string{driver.NUMANodeKey: "1"}, []metav1.ManagedFieldsEntry{{}}
	pvc := claim("any", "1Gi")
	pvc.Annotations = map[string]string{selectedNodeAnnotation: "n1", "a": "b"}
	pod := refused("a", "b", "csi.nvfs.dev/numa-1")
	pod.Spec.Volumes = []corev1.Volume{{}}
	other := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{StorageClassName: "x"}}
	for _, object := range []any{pv, pvc, pod, other} {
		if _, err := strip(object); err != nil {
			t.Fatal(err)
		}
	}
	if numaNodeOf(pv) != 1 || nodeOf(pv) != "n1" || pv.Spec.ClaimRef == nil || pv.ManagedFields != nil {
		t.Errorf("volume %+v", pv)
	}
	if pvc.Annotations[selectedNodeAnnotation] != "n1" || len(pvc.Annotations) != 1 || classOf(pvc, []*storagev1.StorageClass{class("any")}) == nil || pvc.Spec.Resources.Requests.Storage().IsZero() {
		t.Errorf("claim %+v", pvc)
	}
	if len(findingsOfRefused([]*corev1.Pod{pod})) != 1 || pod.Spec.Volumes != nil {
		t.Errorf("pod %+v", pod)
	}
	if other.Spec.StorageClassName != "" {
		t.Errorf("volume of another driver %+v", other)
	}
}
