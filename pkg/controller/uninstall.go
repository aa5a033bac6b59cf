package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// maxNamed is how many pods an error names.
const maxNamed = 10

// CheckUninstall returns an error while pods use volumes of the driver: without
// it they could not end any more.
func CheckUninstall(ctx context.Context, client kubernetes.Interface) error {
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("volumes: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	users := usersOf(volumes.Items, pods.Items)
	if len(users) == 0 {
		return nil
	}
	named := strings.Join(users[:min(len(users), maxNamed)], ", ")
	if len(users) > maxNamed {
		named += ", ..."
	}
	return fmt.Errorf("%d pods use volumes of the driver and could not end without it; delete them first: %s", len(users), named)
}

// usersOf returns the pods that have not ended and use a volume of the driver.
func usersOf(volumes []corev1.PersistentVolume, pods []corev1.Pod) []string {
	claims := map[string]bool{}
	for i := range volumes {
		if ref := volumes[i].Spec.ClaimRef; ref != nil && len(volumesOf([]*corev1.PersistentVolume{&volumes[i]})) == 1 {
			claims[ref.Namespace+"/"+ref.Name] = true
		}
	}
	var users []string
	for _, pod := range pods {
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !ended && slices.ContainsFunc(claimsOf(&pod), func(claim string) bool { return claims[pod.Namespace+"/"+claim] }) {
			users = append(users, pod.Namespace+"/"+pod.Name)
		}
	}
	slices.Sort(users)
	return users
}

// claimsOf returns the names of the claims of a pod.
func claimsOf(pod *corev1.Pod) []string {
	var names []string
	for _, volume := range pod.Spec.Volumes {
		if c := volume.PersistentVolumeClaim; c != nil {
			names = append(names, c.ClaimName)
		}
		if volume.Ephemeral != nil {
			names = append(names, pod.Name+"-"+volume.Name)
		}
	}
	return names
}
