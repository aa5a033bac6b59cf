package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// AlignmentAnnotation is where a pod says what the webhook has decided, and why.
const AlignmentAnnotation = driver.Name + "/numa-alignment"

// Decisions of the webhook, for its metric.
const (
	decisionAligned   = "aligned"
	decisionAsks      = "asks"      // the pod asks by itself
	decisionSeveral   = "several"   // its volumes are on several NUMA nodes
	decisionUndecided = "undecided" // its volumes are not made yet, on any NUMA node
	decisionOthers    = "others"    // it has no volume of the driver, as far as is known
	decisionFailed    = "failed"
)

// placement is what is known of a volume of a pod before the pod runs.
type placement struct {
	ours  bool
	claim string // what users know it by
	node  int    // NUMA node; -1: not known yet
	why   string // it is not known, for people
}

// placer finds out where a volume of a pod in a namespace is or will be.
type placer func(ctx context.Context, namespace string, volume *corev1.Volume) (placement, error)

// verdict is what becomes of a pod.
type verdict struct {
	decision string
	node     int    // NUMA node, when it is aligned
	message  string // for the annotation; "" changes nothing
	warning  string // for whoever creates the pod; "" for none
	// containers are those that get the resource: paths in the pod.
	containers []string
}

// decide says how a pod is to be aligned with its volumes. Only where a volume is
// for sure counts: on the NUMA node of its class, or, once it is bound, on its own.
func decide(ctx context.Context, namespace string, pod *corev1.Pod, place placer) (verdict, error) {
	if node, asks := asksByItself(pod); asks {
		return verdict{decision: decisionAsks, node: node}, nil
	}
	nodes, undecided := map[int][]string{}, []string{}
	volumes := map[string]bool{}
	for i := range pod.Spec.Volumes {
		p, err := place(ctx, namespace, &pod.Spec.Volumes[i])
		switch {
		case err != nil:
			return verdict{decision: decisionFailed}, err
		case !p.ours:
		case p.node < 0:
			undecided = append(undecided, p.claim+" ("+p.why+")")
		default:
			nodes[p.node] = append(nodes[p.node], p.claim)
			volumes[pod.Spec.Volumes[i].Name] = true
		}
	}
	switch len(nodes) {
	case 0:
		return withoutNode(undecided), nil
	case 1:
		return align(slices.Collect(maps.Keys(nodes))[0], mounting(pod, volumes), undecided), nil
	}
	return several(nodes), nil
}

// asksByItself reports whether a container asks for a NUMA node already, and
// returns the first one that is asked for.
func asksByItself(pod *corev1.Pod) (int, bool) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			for name := range list {
				if node, ok := driver.NUMANodeOfResource(string(name)); ok {
					return node, true
				}
			}
		}
	}
	return -1, false
}

// mounting returns the paths of the containers that use one of these volumes.
func mounting(pod *corev1.Pod, volumes map[string]bool) []string {
	var paths []string
	for field, containers := range map[string][]corev1.Container{"initContainers": pod.Spec.InitContainers, "containers": pod.Spec.Containers} {
		for i, c := range containers {
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return volumes[m.Name] }) ||
				slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return volumes[d.Name] }) {
				paths = append(paths, "/spec/"+field+"/"+strconv.Itoa(i))
			}
		}
	}
	slices.Sort(paths)
	return paths
}

func withoutNode(undecided []string) verdict {
	if len(undecided) == 0 {
		return verdict{decision: decisionOthers, node: -1}
	}
	message := "not aligned: the NUMA node is not known yet for " + strings.Join(undecided, ", ")
	return verdict{decision: decisionUndecided, node: -1, message: message,
		warning: message + "; pods that are made once the volume exists are aligned with it, and with a StorageClass that has " + driver.KeyNUMANode + " the first one is"}
}

func align(node int, containers, undecided []string) verdict {
	v := verdict{decision: decisionAligned, node: node, containers: containers, message: fmt.Sprintf("aligned with NUMA node %d", node)}
	if len(undecided) > 0 {
		v.message += ", which is not known to be that of " + strings.Join(undecided, ", ")
		v.warning = v.message
	}
	if len(containers) == 0 {
		return verdict{decision: decisionOthers, node: -1} // nobody mounts it
	}
	return v
}

func several(nodes map[int][]string) verdict {
	var parts []string
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		parts = append(parts, fmt.Sprintf("%s on NUMA node %d", strings.Join(nodes[node], ", "), node))
	}
	message := "not aligned: the volumes are on several NUMA nodes (" + strings.Join(parts, "; ") + ")"
	return verdict{decision: decisionSeveral, node: -1, message: message, warning: message + "; use volumes of one " + driver.KeyNUMANode}
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// present tells what a pod has, which its typed form does not: a patch that adds
// to what is not there fails, and the pod with it.
type present struct {
	Metadata struct {
		Annotations *map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		InitContainers []presentContainer `json:"initContainers"`
		Containers     []presentContainer `json:"containers"`
	} `json:"spec"`
}

type presentContainer struct {
	Resources *struct {
		Limits   *map[string]any `json:"limits"`
		Requests *map[string]any `json:"requests"`
	} `json:"resources"`
}

// container returns the one with that path; nil for none.
func (p *present) container(path string) *presentContainer {
	for field, containers := range map[string][]presentContainer{"/spec/initContainers/": p.Spec.InitContainers, "/spec/containers/": p.Spec.Containers} {
		text, ok := strings.CutPrefix(path, field)
		if i, err := strconv.Atoi(text); ok && err == nil && i < len(containers) {
			return &containers[i]
		}
	}
	return nil
}

// patch returns the changes that a verdict asks for; none when it asks for none.
func (v verdict) patch(rawPod []byte) ([]operation, error) {
	var has present
	if err := json.Unmarshal(rawPod, &has); err != nil {
		return nil, fmt.Errorf("pod: %w", err)
	}
	var operations []operation
	if v.message != "" {
		if has.Metadata.Annotations == nil {
			operations = append(operations, operation{"add", "/metadata/annotations", map[string]string{}})
		}
		operations = append(operations, operation{"add", "/metadata/annotations/" + escape(AlignmentAnnotation), v.message})
	}
	for _, path := range v.containers {
		operations = append(operations, ask(path, has.container(path), driver.NUMAResource(v.node))...)
	}
	return operations, nil
}

// ask lets one container ask for one of a resource. Kubernetes wants the request of
// an extended resource to be its limit.
func ask(path string, has *presentContainer, resource string) []operation {
	path += "/resources"
	var operations []operation
	if has == nil || has.Resources == nil {
		return append(operations, operation{"add", path, map[string]any{
			"limits": map[string]string{resource: "1"}, "requests": map[string]string{resource: "1"}}})
	}
	for _, list := range []struct {
		name string
		has  *map[string]any
	}{{"limits", has.Resources.Limits}, {"requests", has.Resources.Requests}} {
		if list.has == nil {
			operations = append(operations, operation{"add", path + "/" + list.name, map[string]string{resource: "1"}})
			continue
		}
		operations = append(operations, operation{"add", path + "/" + list.name + "/" + escape(resource), "1"})
	}
	return operations
}

// escape makes a member name of JSON one element of a JSON pointer.
func escape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
