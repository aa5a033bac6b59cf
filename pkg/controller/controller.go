package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// component is the name of the controller in events and of its lease.
const component = "nvfs-csi-controller"

// settle is how long changes of objects are gathered before they are looked
// at.
const settle = 2 * time.Second

// Options are what an administrator sets.
type Options struct {
	Endpoint     string        // CSI socket for the resizer, unix:///PATH; "": none
	Namespace    string        // of the lease and of the node pods
	Identity     string        // unique name of this process
	NodeSelector string        // labels of the node pods
	NodePort     int           // of the node pods' HTTP server
	Resync       time.Duration // how often everything is looked at
	HTTPAddress  string        // for /healthz and /metrics; "": none
	Version      string
}

// Validate returns all that is wrong with the options.
func (o *Options) Validate() error {
	var errs []error
	for flag, value := range map[string]string{"--namespace": o.Namespace, "--identity": o.Identity} {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s is missing", flag))
		}
	}
	if o.NodeSelector == "" {
		errs = append(errs, errors.New("--node-selector is missing"))
	} else if _, err := labels.Parse(o.NodeSelector); err != nil {
		errs = append(errs, fmt.Errorf("--node-selector: %w", err))
	}
	if o.NodePort <= 0 || o.NodePort > 65535 {
		errs = append(errs, fmt.Errorf("--node-port %d is not a port", o.NodePort))
	}
	if o.Resync < time.Second {
		errs = append(errs, fmt.Errorf("--resync %s must be at least a second", o.Resync))
	}
	return errors.Join(errs...)
}

// Run works until ctx ends. Of several processes with the same namespace only
// the leader looks at the cluster; each serves its own socket and HTTP.
func Run(ctx context.Context, client kubernetes.Interface, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	metrics := newMetrics(o.Version)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return driver.ServeHTTP(ctx, o.HTTPAddress, metrics.handler()) })
	if o.Endpoint != "" {
		group.Go(func() error { return driver.ServeCluster(ctx, o.Endpoint, o.Version) })
	}
	group.Go(func() error {
		return lead(ctx, client, o, metrics, func(ctx context.Context) error { return newWatcher(client, o, metrics).run(ctx) })
	})
	return group.Wait()
}

// watcher looks at the cluster. All but changed belongs to the goroutine of
// run.
type watcher struct {
	client   kubernetes.Interface
	options  Options
	metrics  *controllerMetrics
	fetcher  fetcher
	factory  informers.SharedInformerFactory
	classes  storagelisters.StorageClassLister
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	orphaned map[orphan]bool
	changed  chan struct{} // capacity 1: something is to be looked at
}

func newWatcher(client kubernetes.Interface, o Options, m *controllerMetrics) *watcher {
	factory := informers.NewSharedInformerFactory(client, 0)
	return &watcher{
		client: client, options: o, metrics: m, factory: factory,
		fetcher: fetcher{client: &http.Client{}, port: o.NodePort},
		classes: factory.Storage().V1().StorageClasses().Lister(),
		claims:  factory.Core().V1().PersistentVolumeClaims().Lister(),
		volumes: factory.Core().V1().PersistentVolumes().Lister(),
		changed: make(chan struct{}, 1),
	}
}

// run looks at the cluster whenever it has changed, and every Resync, until ctx
// ends.
func (w *watcher) run(ctx context.Context) error {
	announcer := newAnnouncer(ctx, w.client)
	if err := w.watch(); err != nil {
		return err
	}
	w.factory.Start(ctx.Done())
	defer w.factory.Shutdown()
	for kind, synced := range w.factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("no list of %s: %w", kind, context.Cause(ctx))
		}
	}
	resync := time.NewTicker(w.options.Resync)
	defer resync.Stop()
	for {
		w.look(ctx, announcer)
		select {
		case <-ctx.Done():
			return nil
		case <-resync.C:
		case <-w.changed:
			select {
			case <-time.After(settle):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// watch notices new classes and claims, which are what users wait for.
func (w *watcher) watch() error {
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { w.notice() },
		UpdateFunc: func(before, after any) {
			if claim, ok := after.(*corev1.PersistentVolumeClaim); !ok || claim.Status.Phase == corev1.ClaimPending {
				w.notice()
			}
		},
	}
	_, classErr := w.factory.Storage().V1().StorageClasses().Informer().AddEventHandler(handler)
	_, claimErr := w.factory.Core().V1().PersistentVolumeClaims().Informer().AddEventHandler(handler)
	return errors.Join(classErr, claimErr)
}

func (w *watcher) notice() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// look looks at everything once. What cannot be read is logged and looked at
// again the next time.
func (w *watcher) look(ctx context.Context, a *announcer) {
	findings, err := w.findings(ctx)
	if err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "The cluster could not be looked at")
		w.metrics.failures.Inc()
		return
	}
	if ctx.Err() == nil {
		a.announce(findings)
	}
}

func (w *watcher) findings(ctx context.Context) ([]finding, error) {
	classes, classErr := w.classes.List(labels.Everything())
	claims, claimErr := w.claims.List(labels.Everything())
	all, volumeErr := w.volumes.List(labels.Everything())
	present, nodeErr := w.nodeNames(ctx)
	pods, podErr := w.nodePods(ctx)
	waiting, waitingErr := w.waitingPods(ctx, claims, classes)
	if err := errors.Join(classErr, claimErr, volumeErr, nodeErr, podErr, waitingErr); err != nil {
		return nil, err
	}
	reported := w.fetcher.fetch(ctx, pods)
	volumes := volumesOf(all)
	orphans := orphansOf(reported.reports, volumes)
	lastingOrphans := lasting(orphans, w.orphaned)
	w.orphaned = map[orphan]bool{}
	for _, o := range orphans {
		w.orphaned[o] = true
	}
	found := findingsOfClasses(classes, reported)
	w.metrics.set(reported, len(pods), countClasses(classes), len(found), lastingOrphans)
	found = append(found, findingsOfClaims(claims, classes, reported, newTogether(waiting, volumes))...)
	found = append(found, findingsOfVolumes(volumes, present)...)
	return append(found, findingsOfOrphans(lastingOrphans)...), nil
}

func countClasses(classes []*storagev1.StorageClass) int {
	n := 0
	for _, class := range classes {
		if class.Provisioner == driver.Name {
			n++
		}
	}
	return n
}

// nodeNames returns the names of the nodes of the cluster.
func (w *watcher) nodeNames(ctx context.Context) (map[string]bool, error) {
	list, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	names := map[string]bool{}
	for _, node := range list.Items {
		names[node.Name] = true
	}
	return names, nil
}

// nodePods returns the pods of the driver that are not about to end.
func (w *watcher) nodePods(ctx context.Context) ([]*corev1.Pod, error) {
	list, err := w.client.CoreV1().Pods(w.options.Namespace).List(ctx, metav1.ListOptions{LabelSelector: w.options.NodeSelector, ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("pods of the driver: %w", err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			pods = append(pods, &list.Items[i])
		}
	}
	return pods, nil
}
