package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// repeatAfter is how long an event that still holds is not repeated. Events
// live for an hour by default.
const repeatAfter = 20 * time.Minute

// announcer turns findings into events and log lines, each only once in a
// while. It is used by one goroutine.
type announcer struct {
	recorder record.EventRecorder
	now      func() time.Time
	last     map[string]time.Time
}

// newAnnouncer returns an announcer whose events are sent until ctx ends.
func newAnnouncer(ctx context.Context, client kubernetes.Interface) *announcer {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
	return &announcer{recorder: recorder, now: time.Now, last: map[string]time.Time{}}
}

// announce makes an event of each finding that is new, or old enough to be
// repeated, and forgets those that do not hold any more.
func (a *announcer) announce(findings []finding) {
	now, still := a.now(), map[string]time.Time{}
	for _, f := range findings {
		key := f.key()
		if at, ok := a.last[key]; ok && (toldOnce[f.reason] || now.Sub(at) < repeatAfter) {
			still[key] = at
			continue
		}
		still[key] = now
		kind := corev1.EventTypeWarning
		if normal[f.reason] {
			kind = corev1.EventTypeNormal
		}
		a.recorder.Event(&f.object, kind, f.reason, f.message)
		klog.InfoS("Finding", "kind", f.object.Kind, "object", klog.KRef(f.object.Namespace, f.object.Name), "reason", f.reason, "message", f.message)
	}
	a.last = still
}
