package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

const mib = 1 << 20

// twoNodes offer nt everywhere, clwb on n2 only, and NUMA nodes 0 and 1.
func twoNodes() nodes {
	region := func(numa int, largest uint64, modes ...string) driver.RegionReport {
		return driver.RegionReport{Name: "r", NUMANode: numa, Size: 512 * mib, Available: largest, LargestExtent: largest, FlushModes: append(modes, "auto", "nt")}
	}
	return nodes{complete: true, reports: []driver.Report{
		{Node: "n1", Regions: []driver.RegionReport{region(0, 100*mib), region(1, 200*mib)}},
		{Node: "n2", Regions: []driver.RegionReport{region(0, 50*mib, "clwb")}},
	}}
}

func class(name string, parameters ...string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{TypeMeta: metav1.TypeMeta{Kind: "StorageClass", APIVersion: "storage.k8s.io/v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver.Name, Parameters: map[string]string{}}
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	c.VolumeBindingMode = &wait
	for i := 0; i < len(parameters); i += 2 {
		c.Parameters[parameters[i]] = parameters[i+1]
	}
	return c
}

// bound is a class with another binding mode; "" is none.
func bound(mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	c := class("a")
	if c.VolumeBindingMode = nil; mode != "" {
		c.VolumeBindingMode = &mode
	}
	return c
}

func claim(class, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
}

func TestClassProblems(t *testing.T) {
	incomplete := twoNodes()
	incomplete.complete = false
	none := nodes{complete: true, reports: []driver.Report{{Node: "n1"}}}
	for name, c := range map[string]struct {
		class  *storagev1.StorageClass
		nodes  nodes
		reason string
		says   string
	}{
		"fine":                         {class("a"), twoNodes(), "", ""},
		"only one node can":            {class("a", "flushMode", "clwb"), twoNodes(), "", ""},
		"unknown key":                  {class("a", "flushmode", "nt"), twoNodes(), ReasonInvalidParameters, `"flushmode"`},
		"unknown key, nobody answers":  {class("a", "flushmode", "nt"), nodes{}, ReasonInvalidParameters, "delete StorageClass a"},
		"mode that nobody offers":      {class("a", "flushMode", "movdir64b"), twoNodes(), ReasonFlushModeNotOffered, "offered are auto, clwb, nt"},
		"mode on that NUMA node":       {class("a", "flushMode", "clwb", "numaNode", "1"), twoNodes(), ReasonFlushModeNotOffered, "offered are auto, nt."},
		"NUMA node that nobody has":    {class("a", "numaNode", "7"), twoNodes(), ReasonNUMANodeNotFound, "there is memory on 0, 1."},
		"no memory at all":             {class("a"), none, ReasonNoMemory, "None of the 1 nodes"},
		"a node has not answered yet":  {class("a", "flushMode", "movdir64b"), incomplete, "", ""},
		"the driver runs nowhere":      {class("a", "flushMode", "movdir64b"), nodes{complete: true}, "", ""},
		"reserved keys are not judged": {class("a", "csi.storage.k8s.io/pvc/name", "x"), twoNodes(), "", ""},
		"binds before there is a pod":  {bound(storagev1.VolumeBindingImmediate), nodes{}, ReasonImmediateBinding, "delete StorageClass a and create it anew with volumeBindingMode: WaitForFirstConsumer"},
		"binds as is the default":      {bound(""), twoNodes(), ReasonImmediateBinding, "WaitForFirstConsumer"},
	} {
		reason, message := classProblem(c.class, c.nodes)
		if reason != c.reason || !strings.Contains(message, c.says) {
			t.Errorf("%s: %q %q, want %q with %q", name, reason, message, c.reason, c.says)
		}
	}
}

func TestUnusableRegionsOfferNothing(t *testing.T) {
	n := twoNodes()
	n.reports[1].Regions[0].Unusable = "no label area"
	if reason, _ := classProblem(class("a", "flushMode", "clwb"), n); reason != ReasonFlushModeNotOffered {
		t.Errorf("reason %q", reason)
	}
}

func TestClassesOfOthersAreNotLookedAt(t *testing.T) {
	other := class("b", "whatever", "x")
	other.Provisioner = "example.com/other"
	if found := findingsOfClasses([]*storagev1.StorageClass{other}, twoNodes()); len(found) != 0 {
		t.Errorf("findings %v", found)
	}
	if found := findingsOfClaims([]*corev1.PersistentVolumeClaim{claim("b", "1Ti")}, []*storagev1.StorageClass{other}, twoNodes(), together{}); len(found) != 0 {
		t.Errorf("findings %v", found)
	}
}

func TestClaimProblems(t *testing.T) {
	classes := []*storagev1.StorageClass{class("any"), class("clwb", "flushMode", "clwb"), class("bad", "size", "1")}
	for name, c := range map[string]struct {
		claim  *corev1.PersistentVolumeClaim
		reason string
		says   string
	}{
		"waits for a pod":               {claim("any", "200Mi"), "", ""},
		"larger than any extent":        {claim("any", "201Mi"), ReasonTooLarge, "201Mi is asked for; the largest free extent is 200Mi, on node n1"},
		"a node with room is no use":    {claim("clwb", "51Mi"), ReasonTooLarge, "50Mi, on node n2"},
		"larger than any region":        {claim("any", "513Mi"), ReasonTooLarge, "Ask for less: the largest region has 512Mi."},
		"class that cannot be served":   {claim("bad", "1Mi"), ReasonInvalidParameters, "StorageClass bad cannot be served"},
		"class that does not exist":     {claim("gone", "1Mi"), "", ""},
		"two extents are not one":       {claim("any", "250Mi"), ReasonTooLarge, "has to fit into one extent"},
		"could be made room for it":     {claim("any", "300Mi"), ReasonTooLarge, "Delete volumes"},
		"size of nothing is no problem": {claim("any", "0"), "", ""},
	} {
		found := findingsOfClaims([]*corev1.PersistentVolumeClaim{c.claim}, classes, twoNodes(), together{})
		switch {
		case c.reason == "" && len(found) > 0:
			t.Errorf("%s: %+v", name, found)
		case c.reason != "" && (len(found) != 1 || found[0].reason != c.reason || !strings.Contains(found[0].message, c.says)):
			t.Errorf("%s: %+v, want %s with %q", name, found, c.reason, c.says)
		}
	}
	bound := claim("any", "1Ti")
	bound.Status.Phase = corev1.ClaimBound
	if found := findingsOfClaims([]*corev1.PersistentVolumeClaim{bound}, classes, twoNodes(), together{}); len(found) != 0 {
		t.Errorf("a bound claim: %v", found)
	}
}

func TestClaimBesideOthers(t *testing.T) {
	classes := []*storagev1.StorageClass{class("any"), class("numa0", "numaNode", "0")}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "user"}}
	for _, name := range []string{"first", "data"} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
	placed, elsewhere := pod, pod
	placed.Spec.NodeName = "n2"
	elsewhere.Namespace = "other"
	first := volume("a", "1", "n2")
	first.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "first"}
	silent := volume("a", "1", "n3")
	silent.Spec.ClaimRef = first.Spec.ClaimRef
	for name, c := range map[string]struct {
		claim  *corev1.PersistentVolumeClaim
		pod    corev1.Pod
		volume *corev1.PersistentVolume
		want   bool
	}{
		"room on the other node only":       {claim("any", "60Mi"), pod, first, true},
		"room beside the first":             {claim("any", "50Mi"), pod, first, false},
		"the pod has been placed":           {claim("any", "60Mi"), placed, first, false},
		"a pod of another namespace":        {claim("any", "60Mi"), elsewhere, first, false},
		"the node of the first is silent":   {claim("any", "60Mi"), pod, silent, false},
		"the first has no volume yet":       {claim("any", "60Mi"), pod, volume("b", "2", "n2"), false},
		"the class is of another NUMA node": {claim("numa0", "60Mi"), pod, first, true},
	} {
		found := findingsOfClaims([]*corev1.PersistentVolumeClaim{c.claim}, classes, twoNodes(), newTogether([]corev1.Pod{c.pod}, []*corev1.PersistentVolume{c.volume}))
		if !c.want && len(found) > 0 || c.want && (len(found) != 1 || found[0].reason != ReasonNotBeside) {
			t.Errorf("%s: %+v", name, found)
			continue
		}
		if c.want && !strings.Contains(found[0].message, "Pod user also uses claim first, whose volume is on node n2; 60Mi is asked for, and the largest free extent there is 50Mi.") {
			t.Errorf("%s: %s", name, found[0].message)
		}
	}
}

func volume(name, handle, node string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver.Name, VolumeHandle: handle}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team", Name: "claim-of-" + name}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: driver.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}
	return pv
}

func TestVolumeWhoseNodeIsGone(t *testing.T) {
	found := findingsOfVolumes([]*corev1.PersistentVolume{volume("a", "1", "n1"), volume("b", "2", "n9")}, map[string]bool{"n1": true})
	if len(found) != 1 || found[0].object.Name != "b" || found[0].reason != ReasonNodeGone {
		t.Fatalf("findings %+v", found)
	}
	for _, command := range []string{"kubectl -n team delete pvc claim-of-b", "kubectl delete pv b "} {
		if !strings.Contains(found[0].message, command) {
			t.Errorf("the message lacks %q: %s", command, found[0].message)
		}
	}
}

func TestOrphans(t *testing.T) {
	report := driver.Report{Node: "n1",
		Volumes: []driver.VolumeReport{{ID: "1", Phase: "ready"}, {ID: "2", Phase: "ready", Bytes: mib}, {ID: "3", Phase: "creating"}, {ID: "4", Phase: "deleting"}},
		Orphans: []driver.Orphan{{Namespace: "5", Bytes: mib, Reason: "no record"}}}
	found := orphansOf([]driver.Report{report}, []*corev1.PersistentVolume{volume("a", "1", "n1")})
	var ids []string
	for _, o := range found {
		ids = append(ids, o.volume)
	}
	if !slices.Equal(ids, []string{"2", "5"}) {
		t.Errorf("orphans %v", ids)
	}
	if kept := lasting(found, map[orphan]bool{}); len(kept) != 0 {
		t.Errorf("reported at first sight: %v", kept)
	}
	if kept := lasting(found, map[orphan]bool{found[1]: true}); len(kept) != 1 || kept[0] != found[1] {
		t.Errorf("lasting: %v", kept)
	}
}

func TestEventsAreNotRepeatedAtEachLook(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	now := time.Unix(0, 0)
	a := &announcer{recorder: recorder, now: func() time.Time { return now }, last: map[string]time.Time{}}
	findings := findingsOfClasses([]*storagev1.StorageClass{class("a", "x", "y")}, twoNodes())
	a.announce(findings)
	a.announce(findings)
	if len(recorder.Events) != 1 {
		t.Errorf("%d events after two looks", len(recorder.Events))
	}
	now = now.Add(repeatAfter)
	a.announce(findings)
	if len(recorder.Events) != 2 {
		t.Errorf("%d events after the time has passed", len(recorder.Events))
	}
	a.announce(nil)
	a.announce(findings)
	if len(recorder.Events) != 3 {
		t.Errorf("%d events: what is new again must be told again", len(recorder.Events))
	}
}

func TestUninstallCheckFindsPods(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase, v corev1.Volume) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{v}}, Status: corev1.PodStatus{Phase: phase}}
	}
	ofClaim := func(claim string) corev1.Volume {
		return corev1.Volume{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
	}
	ephemeral := volume("b", "2", "n1")
	ephemeral.Spec.ClaimRef.Name = "temp-scratch"
	volumes := []corev1.PersistentVolume{*volume("a", "1", "n1"), *ephemeral}
	pods := []corev1.Pod{
		pod("user", corev1.PodRunning, ofClaim("claim-of-a")),
		pod("done", corev1.PodSucceeded, ofClaim("claim-of-a")),
		pod("other", corev1.PodRunning, ofClaim("of-somebody-else")),
		pod("temp", corev1.PodPending, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}),
	}
	if users := usersOf(volumes, pods); !slices.Equal(users, []string{"team/temp", "team/user"}) {
		t.Errorf("users %v", users)
	}
}
