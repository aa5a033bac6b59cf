package e2e

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

const topologyKey = "topology.csi.nvfs.dev/node"

// class makes a StorageClass for the test and removes it afterwards.
func (k *kube) class(name string, parameters map[string]string) {
	k.Helper()
	var lines strings.Builder
	for key, value := range parameters {
		fmt.Fprintf(&lines, "  %s: %q\n", key, value)
	}
	k.apply(fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: csi.nvfs.dev
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters:
%s`, name, lines.String()))
	k.Cleanup(func() {
		if _, err := k.try("delete", "storageclass", name, "--ignore-not-found"); err != nil {
			k.Error(err)
		}
	})
}

// claim makes a claim of access mode ReadWriteOnce.
func (k *kube) claim(name, class, size string) {
	k.Helper()
	k.claimOf(name, class, size, "ReadWriteOnce", "")
}

// claimOf makes a claim with an access mode and further lines of its spec.
func (k *kube) claimOf(name, class, size, accessMode, extra string) {
	k.Helper()
	k.apply(fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [%s]
  storageClassName: %s
  resources: {requests: {storage: %s}}
%s`, name, accessMode, class, size, extra))
}

// podOptions describe a pod with one container of busybox and fio.
type podOptions struct {
	node    string // "": any
	claim   string // mounted at /data
	volume  string // instead of claim: the volume source in flow style
	mounts  string // instead of /data: further lines of the container's spec
	restart string // restartPolicy; Never when empty
	command string
	extra   string // further lines of the pod's spec
}

func (k *kube) pod(name string, o podOptions) {
	k.Helper()
	volume := o.volume
	if volume == "" {
		volume = fmt.Sprintf("persistentVolumeClaim: {claimName: %s}", o.claim)
	}
	mounts := o.mounts
	if mounts == "" {
		mounts = "      volumeMounts: [{name: data, mountPath: /data}]\n"
	}
	restart := o.restart
	if restart == "" {
		restart = "Never"
	}
	selector := ""
	if o.node != "" {
		selector = "  nodeSelector: {kubernetes.io/hostname: " + o.node + "}\n"
	}
	k.apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: %s
  terminationGracePeriodSeconds: 1
%s%s  containers:
    - name: main
      image: %s
      imagePullPolicy: Never
      command: [sh, -c, %q]
%s  volumes:
    - name: data
      %s
`, name, restart, selector, o.extra, localcluster.ToolsImage, o.command, mounts, volume))
}

// awaitPod waits until a pod is in a phase; one that has failed fails the test.
func (k *kube) awaitPod(name string, phase corev1.PodPhase) corev1.Pod {
	k.Helper()
	var pod corev1.Pod
	k.eventually("pod "+name+" "+string(phase), func() string {
		k.get(&pod, "pod", name)
		if pod.Status.Phase == phase {
			return ""
		}
		if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
			logs, _ := k.try("-n", k.namespace, "logs", name)
			k.Fatalf("pod %s is %s: %s", name, pod.Status.Phase, logs)
		}
		return "it is " + string(pod.Status.Phase)
	})
	return pod
}

// exec runs a shell command in a pod.
func (k *kube) exec(pod, command string) string {
	k.Helper()
	return k.must("-n", k.namespace, "exec", pod, "--", "sh", "-c", command)
}

// volumeOf returns the volume of a claim.
func (k *kube) volumeOf(claim string) corev1.PersistentVolume {
	k.Helper()
	var pvc corev1.PersistentVolumeClaim
	k.get(&pvc, "pvc", claim)
	var pv corev1.PersistentVolume
	k.get(&pv, "pv", pvc.Spec.VolumeName)
	return pv
}

// nodeOf returns the node that a volume can be used on.
func nodeOf(pv corev1.PersistentVolume) string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == topologyKey {
				return strings.Join(e.Values, ",")
			}
		}
	}
	return ""
}

// awaitEvent waits for an event on an object and returns its message.
func (k *kube) awaitEvent(namespace, kind, name, reason string) string {
	k.Helper()
	return k.awaitEventWith(namespace, kind, name, reason, "")
}

// awaitEventWith waits for an event whose message has a part.
func (k *kube) awaitEventWith(namespace, kind, name, reason, part string) string {
	k.Helper()
	var message string
	k.eventually("event "+reason+" on "+kind+" "+name, func() string {
		var list corev1.EventList
		k.get(&list, "-n", namespace, "events", "--field-selector", "involvedObject.kind="+kind+",involvedObject.name="+name)
		var others []string
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, part) {
				message = e.Message
				return ""
			}
			others = append(others, e.Reason+": "+e.Message)
		}
		return "there are " + strings.Join(others, "; ")
	})
	return message
}

// driverPod returns the name of the pod of a component on a node.
func (k *kube) driverPod(component, node string) string {
	k.Helper()
	return k.must("-n", localcluster.Namespace, "get", "pods", "-l", "app.kubernetes.io/component="+component,
		"--field-selector", "spec.nodeName="+node+",status.phase=Running", "-o", "jsonpath={.items[0].metadata.name}")
}

// fioVerify is a shell command that writes with fio and reads everything back.
const fioVerify = "fio --name=verify --directory=/data --size=16m --bs=4k --rw=randwrite --ioengine=psync --verify=crc32c --do_verify=1 --verify_fatal=1 --fallocate=none --output-format=terse"
