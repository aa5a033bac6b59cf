package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// selectedNodeAnnotation is how the scheduler tells the provisioner of a node to
// make the volume of a claim. Only that provisioner gives the claim back, and
// until then the pod can run on no other node.
const selectedNodeAnnotation = "volume.kubernetes.io/selected-node"

const (
	// nodeGoneFor is how long a node must have been out of the cluster, and
	// driverGoneFor how long a node must have been without a driver, before a
	// claim is taken away from it. A driver that is being upgraded comes back.
	nodeGoneFor   = 30 * time.Second
	driverGoneFor = 5 * time.Minute
)

// stuckClaim is a claim that waits for a node which will not make its volume.
type stuckClaim struct {
	claim *corev1.PersistentVolumeClaim
	why   string
}

// stuck remembers since when claims have been waiting for nobody.
type stuck struct {
	since map[types.UID]time.Time
	now   func() time.Time
}

func newStuck() *stuck { return &stuck{since: map[types.UID]time.Time{}, now: time.Now} }

// look returns the claims that are to be given back to the scheduler: those whose
// node has left the cluster, or has had no driver for a while. A node whose memory
// is full or gone gives them back by itself.
func (s *stuck) look(claims []*corev1.PersistentVolumeClaim, classes []*storagev1.StorageClass, present map[string]bool, drivers map[string]bool) []stuckClaim {
	var found []stuckClaim
	still := map[types.UID]time.Time{}
	for _, claim := range claims {
		node := claim.Annotations[selectedNodeAnnotation]
		if node == "" || present[node] && drivers[node] || classOf(claim, classes) == nil {
			continue
		}
		since, seen := s.since[claim.UID]
		if !seen {
			since = s.now()
		}
		still[claim.UID] = since
		patience, why := driverGoneFor, "has had no driver for "+driverGoneFor.String()
		if !present[node] {
			patience, why = nodeGoneFor, "is not in the cluster any more"
		}
		if s.now().Sub(since) >= patience {
			found = append(found, stuckClaim{claim, fmt.Sprintf("Node %s, on which the volume was to be made, %s. The scheduler chooses another one.", node, why)})
		}
	}
	s.since = still
	return found
}

// giveBack lets the scheduler choose again, and says so.
func (w *watcher) giveBack(ctx context.Context, claims []stuckClaim) ([]finding, error) {
	var found []finding
	var errs []error
	for _, c := range claims {
		// Only if nothing has changed since: the volume may have been made.
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": c.claim.ResourceVersion, "annotations": map[string]any{selectedNodeAnnotation: nil}}})
		if err != nil {
			return nil, err
		}
		_, err = w.client.CoreV1().PersistentVolumeClaims(c.claim.Namespace).Patch(ctx, c.claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			continue // it is looked at again as it is then
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("claim %s/%s: %w", c.claim.Namespace, c.claim.Name, err))
			continue
		}
		klog.InfoS("Gave a claim back to the scheduler", "claim", klog.KObj(c.claim), "reason", c.why)
		found = append(found, finding{claimReference(c.claim), ReasonRescheduled, c.why})
	}
	return found, errors.Join(errs...)
}
