package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// defaultClassAnnotation marks the class of claims that name none.
const defaultClassAnnotation = "storageclass.kubernetes.io/is-default-class"

// claimPlacer answers from what is watched. Of a claim or volume that was made a
// moment ago together with the pod, a watch may not have heard yet: the API server
// is asked for it.
type claimPlacer struct {
	client  kubernetes.Interface
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

// place is a placer.
func (p *claimPlacer) place(ctx context.Context, namespace string, volume *corev1.Volume) (placement, error) {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return p.placeClaim(ctx, namespace, volume.PersistentVolumeClaim.ClaimName)
	case volume.Ephemeral != nil && volume.Ephemeral.VolumeClaimTemplate != nil:
		// Its claim is made after the pod, always anew.
		return p.placeClass(ctx, "the ephemeral volume "+volume.Name, volume.Ephemeral.VolumeClaimTemplate.Spec.StorageClassName)
	}
	return placement{}, nil
}

func (p *claimPlacer) placeClaim(ctx context.Context, namespace, name string) (placement, error) {
	claim, err := p.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		claim, err = p.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return placement{}, nil // the pod waits for it, and nobody knows what it will be
	}
	if err != nil {
		return placement{}, fmt.Errorf("claim %s: %w", name, err)
	}
	if claim.Spec.VolumeName == "" {
		return p.placeClass(ctx, "claim "+name, claim.Spec.StorageClassName)
	}
	pv, err := p.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		pv, err = p.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	}
	if err != nil {
		return placement{}, fmt.Errorf("volume %s of claim %s: %w", claim.Spec.VolumeName, name, err)
	}
	if len(volumesOf([]*corev1.PersistentVolume{pv})) == 0 {
		return placement{}, nil
	}
	found := placement{ours: true, claim: "claim " + name, node: numaNodeOf(pv)}
	if found.node < 0 {
		found.why = "its PersistentVolume " + pv.Name + " does not say"
	}
	return found, nil
}

// placeClass says where a volume of a class will be that is not made yet.
func (p *claimPlacer) placeClass(ctx context.Context, what string, name *string) (placement, error) {
	class, err := p.class(ctx, name)
	if err != nil || class == nil || class.Provisioner != driver.Name {
		return placement{}, err
	}
	found := placement{ours: true, claim: what, node: -1}
	params, err := driver.ParseParams(driver.OriginClass, class.Parameters)
	switch {
	case err != nil:
		found.why = "StorageClass " + class.Name + " is not valid"
	case params.NUMANode < 0:
		found.why = "StorageClass " + class.Name + " lets the driver choose"
	default:
		found.node = params.NUMANode
	}
	return found, nil
}

// class returns the class of that name, or the default one; nil when there is none.
func (p *claimPlacer) class(ctx context.Context, name *string) (*storagev1.StorageClass, error) {
	if name == nil {
		all, err := p.classes.List(labels.Everything())
		if err != nil {
			return nil, fmt.Errorf("StorageClasses: %w", err)
		}
		return defaultClass(all), nil
	}
	if *name == "" {
		return nil, nil
	}
	class, err := p.classes.Get(*name)
	if apierrors.IsNotFound(err) {
		class, err = p.client.StorageV1().StorageClasses().Get(ctx, *name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("StorageClass %s: %w", *name, err)
	}
	return class, nil
}

// defaultClass is the one that Kubernetes takes: of several the newest, of those
// the first by name.
func defaultClass(all []*storagev1.StorageClass) *storagev1.StorageClass {
	defaults := slices.DeleteFunc(slices.Clone(all), func(c *storagev1.StorageClass) bool { return c.Annotations[defaultClassAnnotation] != "true" })
	if len(defaults) == 0 {
		return nil
	}
	return slices.MinFunc(defaults, func(a, b *storagev1.StorageClass) int {
		if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
		}
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
}

// numaNodeOf returns the NUMA node of a volume of the driver; -1 when it does not
// say. Its attribute cannot be changed, so it goes before the label.
func numaNodeOf(pv *corev1.PersistentVolume) int {
	for _, values := range []map[string]string{pv.Spec.CSI.VolumeAttributes, pv.Labels} {
		if node, ok := driver.ParseNUMANode(values[driver.NUMANodeKey]); ok {
			return node
		}
	}
	return -1
}

// numaLabel is what the label of a volume should be; "" for none.
func numaLabel(pv *corev1.PersistentVolume) string {
	if node, ok := driver.ParseNUMANode(pv.Spec.CSI.VolumeAttributes[driver.NUMANodeKey]); ok {
		return strconv.Itoa(node)
	}
	return ""
}
