package controller

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// newFactory watches what the controller needs: classes, claims and volumes of the
// whole cluster. Of a hundred thousand volumes only what is looked at is kept.
func newFactory(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(strip))
}

// newFailedPodsFactory watches pods that have failed. Others are not watched: there
// may be very many.
func newFailedPodsFactory(client kubernetes.Interface) informers.SharedInformerFactory {
	failed := fields.OneTermEqualSelector("status.phase", string(corev1.PodFailed)).String()
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(strip),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = failed }))
}

// newNodePodsFactory watches the pods of the driver on the nodes.
func newNodePodsFactory(client kubernetes.Interface, o Options) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(strip), informers.WithNamespace(o.Namespace),
		informers.WithTweakListOptions(func(list *metav1.ListOptions) { list.LabelSelector = o.NodeSelector }))
}

// strip takes away what the controller never looks at.
var strip cache.TransformFunc = func(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.PersistentVolume:
		stripMeta(&o.ObjectMeta)
		o.Annotations = nil
		if len(volumesOf([]*corev1.PersistentVolume{o})) == 0 {
			o.Labels, o.Spec = nil, corev1.PersistentVolumeSpec{}
		}
	case *corev1.PersistentVolumeClaim:
		stripMeta(&o.ObjectMeta)
		selected := o.Annotations[selectedNodeAnnotation]
		o.Labels, o.Annotations = nil, nil
		if selected != "" {
			o.Annotations = map[string]string{selectedNodeAnnotation: selected}
		}
	case *corev1.Pod:
		stripMeta(&o.ObjectMeta)
		o.Labels, o.Annotations = nil, nil
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName, InitContainers: stripContainers(o.Spec.InitContainers), Containers: stripContainers(o.Spec.Containers)}
		o.Status = corev1.PodStatus{Phase: o.Status.Phase, Reason: o.Status.Reason, PodIP: o.Status.PodIP}
	case *corev1.Node:
		memory, said := o.Annotations[MemoryAnnotation]
		*o = corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}}
		if said {
			o.Annotations = map[string]string{MemoryAnnotation: memory}
		}
	case *storagev1.StorageClass:
		stripMeta(&o.ObjectMeta)
	}
	return object, nil
}

func stripMeta(meta *metav1.ObjectMeta) { meta.ManagedFields, meta.Finalizers = nil, nil }

func stripContainers(containers []corev1.Container) []corev1.Container {
	var kept []corev1.Container
	for _, c := range containers {
		kept = append(kept, corev1.Container{Name: c.Name, Resources: c.Resources})
	}
	return kept
}
