package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// The usual times of Kubernetes components.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// errLostLease ends the process, which is started anew and stands by.
var errLostLease = errors.New("the lease was lost to another process, or the API server did not answer in time")

// lead runs work while this process holds the lease. It returns when ctx ends,
// when work has ended, or when the lease is lost.
func lead(ctx context.Context, client kubernetes.Interface, o Options, m *controllerMetrics, work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started, ended := make(chan struct{}), make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: component,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: component},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				close(started)
				klog.InfoS("Leading", "identity", o.Identity)
				m.leading.Set(1)
				ended <- work(ctx)
				cancel() // gives the lease back
			},
			OnStoppedLeading: func() { m.leading.Set(0) },
			OnNewLeader:      func(identity string) { klog.V(2).InfoS("The lease is held", "by", identity) },
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(ctx)
	if ctx.Err() == nil {
		return errors.Join(errLostLease, <-ended)
	}
	select {
	case <-started:
		return <-ended
	default: // it never led, or work begins only now, with a context that has ended
		return nil
	}
}
