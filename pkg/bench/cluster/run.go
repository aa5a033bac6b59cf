package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
)

const (
	pollInterval = 500 * time.Millisecond
	// cleanupTimeout bounds the removal of what a run has made; volumes are
	// erased meanwhile.
	cleanupTimeout = 3 * time.Minute
	// runtimeVariable of the container is how long fio measures, in seconds.
	runtimeVariable = "RUNTIME"
)

// Options of a run.
type Options struct {
	Client    kubernetes.Interface
	Workloads []Workload
	Classes   []storagev1.StorageClass
	Image     string            // instead of that of the manifests
	Pull      corev1.PullPolicy // of the image; "" leaves it to Kubernetes
	Node      string            // host name of the node to run on; "": any
	Runtime   time.Duration     // instead of that of the manifests; whole seconds
	Timeout   time.Duration     // of one Job, from its creation to its end
	Progress  func(format string, args ...any)
}

// Run runs each workload once for each class, one after the other, in a
// namespace of its own, which it removes. A Job that fails is in the report, and
// the others are run nevertheless; the error is for what makes going on useless.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	ns, err := o.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "nvfs-bench-"}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("namespace for the Jobs: %w", err)
	}
	r := &run{Options: o, namespace: ns.Name}
	defer func() { err = errors.Join(err, r.cleanUp(context.WithoutCancel(ctx))) }()
	report = &Report{Begin: time.Now().UTC().Truncate(time.Second)}
	if report.Nodes, err = r.nodes(ctx); err != nil {
		return nil, err
	}
	for _, class := range o.Classes {
		report.Classes = append(report.Classes, Class{Name: class.Name, Provisioner: class.Provisioner, Parameters: class.Parameters})
		for _, w := range o.Workloads {
			o.Progress("%s on class %s", w.Name, class.Name)
			result := r.workload(ctx, w, class.Name)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if result.Failure != "" {
				o.Progress("  failed: %s", result.Failure)
			}
			report.Results = append(report.Results, result)
		}
	}
	return report, nil
}

type run struct {
	Options
	namespace string
}

// nodes describes the nodes of the cluster.
func (r *run) nodes(ctx context.Context) ([]Node, error) {
	list, err := r.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	var nodes []Node
	for _, n := range list.Items {
		nodes = append(nodes, Node{Name: n.Name, CPUs: n.Status.Capacity.Cpu().Value(), Kernel: n.Status.NodeInfo.KernelVersion, Kubelet: n.Status.NodeInfo.KubeletVersion})
	}
	return nodes, nil
}

// workload runs one Job and removes it and its volume.
func (r *run) workload(ctx context.Context, w Workload, class string) Result {
	result := Result{Class: class, Workload: w.Name}
	err := r.create(ctx, w, class)
	if err == nil {
		result.Node, result.Jobs, err = r.await(ctx, w)
	}
	if err := errors.Join(err, r.remove(context.WithoutCancel(ctx), w)); err != nil {
		result.Failure = err.Error()
	}
	return result
}

func (r *run) create(ctx context.Context, w Workload, class string) error {
	claim := w.Claim.DeepCopy()
	claim.Namespace, claim.Spec.StorageClassName = r.namespace, &class
	if _, err := r.Client.CoreV1().PersistentVolumeClaims(r.namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	job := w.Job.DeepCopy()
	job.Namespace = r.namespace
	r.adapt(&job.Spec.Template.Spec)
	if _, err := r.Client.BatchV1().Jobs(r.namespace).Create(ctx, job, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	return nil
}

// adapt changes in the manifest's pod what the options want otherwise.
func (r *run) adapt(pod *corev1.PodSpec) {
	container := &pod.Containers[0]
	if r.Image != "" {
		container.Image = r.Image
	}
	if r.Pull != "" {
		container.ImagePullPolicy = r.Pull
	}
	if r.Node != "" {
		if pod.NodeSelector == nil {
			pod.NodeSelector = map[string]string{}
		}
		pod.NodeSelector[corev1.LabelHostname] = r.Node
	}
	if r.Runtime > 0 {
		container.Env = slices.DeleteFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == runtimeVariable })
		container.Env = append(container.Env, corev1.EnvVar{Name: runtimeVariable, Value: strconv.Itoa(int(r.Runtime.Seconds()))})
	}
}

// await waits until the Job has ended and returns where it ran and what fio says.
func (r *run) await(ctx context.Context, w Workload) (node string, jobs []bench.NamedFioResult, err error) {
	failed := false
	err = wait.PollUntilContextTimeout(ctx, pollInterval, r.Timeout, false, func(ctx context.Context) (bool, error) {
		job, err := r.Client.BatchV1().Jobs(r.namespace).Get(ctx, w.Job.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		failed = hasEnded(job, batchv1.JobFailed)
		return failed || hasEnded(job, batchv1.JobComplete), nil
	})
	if err != nil {
		return "", nil, fmt.Errorf("job %s: %w%s", w.Job.Name, err, r.events(context.WithoutCancel(ctx)))
	}
	pods, err := r.Client.CoreV1().Pods(r.namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + w.Job.Name})
	if err != nil {
		return "", nil, fmt.Errorf("pods of job %s: %w", w.Job.Name, err)
	}
	if len(pods.Items) == 0 {
		return "", nil, fmt.Errorf("job %s has ended without a pod%s", w.Job.Name, r.events(ctx))
	}
	pod := pods.Items[len(pods.Items)-1]
	output, err := r.Client.CoreV1().Pods(r.namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("log of pod %s: %w", pod.Name, err)
	}
	if failed {
		return pod.Spec.NodeName, nil, fmt.Errorf("job %s has failed: %s", w.Job.Name, lastLines(output, 5))
	}
	if jobs, err = bench.ParseFio(output); err != nil {
		return pod.Spec.NodeName, nil, fmt.Errorf("job %s: %w: %s", w.Job.Name, err, lastLines(output, 5))
	}
	return pod.Spec.NodeName, jobs, nil
}

func hasEnded(job *batchv1.Job, how batchv1.JobConditionType) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == how && c.Status == corev1.ConditionTrue })
}

// events are the warnings in the namespace: why a claim or pod waits.
func (r *run) events(ctx context.Context) string {
	list, err := r.Client.CoreV1().Events(r.namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
	if err != nil {
		return ""
	}
	var text strings.Builder
	for _, e := range list.Items {
		fmt.Fprintf(&text, "; %s %s: %s", strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name, e.Message)
	}
	return text.String()
}

func lastLines(output []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// remove removes the Job and the claim and waits for the volume to be gone: its
// space is for the next one.
func (r *run) remove(ctx context.Context, w Workload) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	foreground := metav1.DeletePropagationForeground
	err := r.Client.BatchV1().Jobs(r.namespace).Delete(ctx, w.Job.Name, metav1.DeleteOptions{PropagationPolicy: &foreground})
	claims := r.Client.CoreV1().PersistentVolumeClaims(r.namespace)
	claim, getErr := claims.Get(ctx, w.Claim.Name, metav1.GetOptions{})
	if err := errors.Join(ignoreNotFound(err), ignoreNotFound(getErr)); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	if getErr != nil {
		return nil // it was not made
	}
	if err := ignoreNotFound(claims.Delete(ctx, w.Claim.Name, metav1.DeleteOptions{})); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if _, err := claims.Get(ctx, w.Claim.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return false, err
		}
		if claim.Spec.VolumeName == "" {
			return true, nil
		}
		_, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("clean up: volume %s of claim %s is still there: %w", claim.Spec.VolumeName, w.Claim.Name, err)
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// cleanUp removes the namespace and waits until it is gone.
func (r *run) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	namespaces := r.Client.CoreV1().Namespaces()
	if err := ignoreNotFound(namespaces.Delete(ctx, r.namespace, metav1.DeleteOptions{})); err != nil {
		return fmt.Errorf("remove namespace %s: %w", r.namespace, err)
	}
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		_, err := namespaces.Get(ctx, r.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("namespace %s is still there: %w", r.namespace, err)
	}
	return nil
}
