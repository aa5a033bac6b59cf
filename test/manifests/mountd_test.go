package manifests

import "testing"

type daemonSet struct {
	Kind     string   `yaml:"kind"`
	Metadata metadata `yaml:"metadata"`
	Spec     struct {
		UpdateStrategy struct {
			Type          string `yaml:"type"`
			RollingUpdate struct {
				MaxSurge       any `yaml:"maxSurge"` // a number or a percentage
				MaxUnavailable any `yaml:"maxUnavailable"`
			} `yaml:"rollingUpdate"`
		} `yaml:"updateStrategy"`
		Template struct {
			Spec struct {
				PriorityClassName string `yaml:"priorityClassName"`
				HostPID           bool   `yaml:"hostPID"`
				Tolerations       []struct {
					Key      string `yaml:"key"`
					Operator string `yaml:"operator"`
					Effect   string `yaml:"effect"`
				} `yaml:"tolerations"`
				Containers []struct {
					Name      string `yaml:"name"`
					Resources struct {
						Limits map[string]string `yaml:"limits"`
					} `yaml:"resources"`
				} `yaml:"containers"`
			} `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

// awslabs/mountpoint-s3-csi-driver#607: a drain evicts the pods that serve
// volumes before those that use them. A DaemonSet's pod is not drained, one that
// tolerates every taint is not evicted, and system-node-critical is the last to
// be preempted, or to be ended when the node runs out of memory or shuts down.
// mountpoint-s3-csi-driver#604, juicedata/juicefs-csi-driver#343: the limit of a
// container ends what serves. kubernetes-sigs/blob-csi-driver#1128: an update
// ends the old pod before there is a new one.
func TestMountdOutlivesThePodsItServes(t *testing.T) {
	for _, file := range installations {
		var found bool
		for _, set := range documents[daemonSet](t, file, "DaemonSet") {
			if set.Metadata.Labels["app.kubernetes.io/component"] == "mountd" {
				found = true
				checkMountd(t, file, set)
			}
		}
		if !found {
			t.Errorf("%s: mountd is no DaemonSet", file)
		}
	}
}

func checkMountd(t *testing.T, file string, set daemonSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	toleratesAll := false
	for _, tol := range pod.Tolerations {
		toleratesAll = toleratesAll || tol.Operator == "Exists" && tol.Key == "" && tol.Effect == ""
	}
	limited := false
	for _, c := range pod.Containers {
		limited = limited || len(c.Resources.Limits) > 0
	}
	update := set.Spec.UpdateStrategy
	for what, ok := range map[string]bool{
		"priority class system-node-critical":   pod.PriorityClassName == "system-node-critical",
		"toleration of every taint":             toleratesAll,
		"the node's process IDs":                pod.HostPID,
		"no limits":                             !limited,
		"rolling update":                        update.Type == "RollingUpdate",
		"the new pod before the old one's end":  update.RollingUpdate.MaxSurge == 1,
		"no time in which neither of them runs": update.RollingUpdate.MaxUnavailable == 0,
	} {
		if !ok {
			t.Errorf("%s: mountd lacks: %s", file, what)
		}
	}
}
