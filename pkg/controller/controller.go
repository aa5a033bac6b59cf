package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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

// restPerNode is how much longer they are gathered for each node that is asked at a
// look: however much changes, no more than 100 nodes are asked in a second.
const restPerNode = 10 * time.Millisecond

// maxChanges is how many labels, and how many annotations, are changed at one look:
// a new controller in a large cluster does not keep it from looking.
const maxChanges = 100

// Options are what an administrator sets.
type Options struct {
	Endpoint     string        // CSI socket for the resizer, unix:///PATH; "": none
	Namespace    string        // of the lease and of the node pods
	Identity     string        // unique name of this process
	NodeSelector string        // labels of the node pods
	NodePort     int           // of the node pods' HTTP server
	Resync       time.Duration // how often everything is looked at
	HTTPAddress  string        // for /healthz, /readyz and /metrics; "": none
	// AnnotateNodes: nodes say in MemoryAnnotation what they have.
	AnnotateNodes bool
	// WebhookAddress is where pods are mutated; "": nowhere. The others are the
	// names of its Service, of the Secret with its certificate, and of its
	// MutatingWebhookConfiguration.
	WebhookAddress       string
	WebhookService       string
	WebhookSecret        string
	WebhookConfiguration string
	// WebhookClient is a client of its own, so that nobody else uses up its
	// requests while a pod waits.
	WebhookClient kubernetes.Interface
	Version       string
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
	if o.WebhookAddress != "" {
		for flag, value := range map[string]string{"--webhook-service": o.WebhookService, "--webhook-secret": o.WebhookSecret, "--webhook-configuration": o.WebhookConfiguration} {
			if value == "" {
				errs = append(errs, fmt.Errorf("--webhook-address needs %s", flag))
			}
		}
		if o.WebhookClient == nil {
			errs = append(errs, errors.New("the webhook has no client"))
		}
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
	metrics, factory := newMetrics(o.Version), newFactory(client)
	defer factory.Shutdown() // when the context of the group has ended
	group, ctx := errgroup.WithContext(ctx)
	hook := newWebhookServer(client, o, metrics, factory)
	group.Go(func() error { return driver.ServeHTTP(ctx, o.HTTPAddress, metrics.handler(hook.ready)) })
	hook.start(ctx, group)
	if o.Endpoint != "" {
		group.Go(func() error { return driver.ServeCluster(ctx, o.Endpoint, o.Version) })
	}
	group.Go(func() error {
		return lead(ctx, client, o, metrics, func(ctx context.Context) error {
			work, ctx := errgroup.WithContext(ctx)
			work.Go(func() error { return newWatcher(client, o, metrics, factory).run(ctx) })
			hook.lead(ctx, work)
			return work.Wait()
		})
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
	leading  leaderFactories
	nodes    corelisters.NodeLister
	drivers  corelisters.PodLister // node pods
	classes  storagelisters.StorageClassLister
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	failed   corelisters.PodLister // pods that have failed
	orphaned map[orphan]bool
	stuck    *stuck
	changed  chan struct{} // capacity 1: something is to be looked at
}

// leaderFactories watch what only the leader looks at.
type leaderFactories struct {
	nodes, drivers, failed informers.SharedInformerFactory
}

func (f leaderFactories) all() []informers.SharedInformerFactory {
	return []informers.SharedInformerFactory{f.nodes, f.drivers, f.failed}
}

func newWatcher(client kubernetes.Interface, o Options, m *controllerMetrics, factory informers.SharedInformerFactory) *watcher {
	leading := leaderFactories{newFactory(client), newNodePodsFactory(client, o), newFailedPodsFactory(client)}
	return &watcher{
		client: client, options: o, metrics: m, factory: factory,
		leading: leading,
		nodes:   leading.nodes.Core().V1().Nodes().Lister(),
		drivers: leading.drivers.Core().V1().Pods().Lister(),
		failed:  leading.failed.Core().V1().Pods().Lister(), stuck: newStuck(),
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
	for _, factory := range w.leading.all() {
		factory.Start(ctx.Done())
		defer factory.Shutdown()
	}
	for _, factory := range append(w.leading.all(), w.factory) {
		for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
			if !synced {
				return fmt.Errorf("no list of %s: %w", kind, context.Cause(ctx))
			}
		}
	}
	resync := time.NewTicker(w.options.Resync)
	defer resync.Stop()
	for {
		asked := w.look(ctx, announcer)
		select {
		case <-ctx.Done():
			return nil
		case <-resync.C:
		case <-w.changed:
			select {
			case <-time.After(max(settle, time.Duration(asked)*restPerNode)):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// watch notices new classes and claims, which are what users wait for, volumes
// without their label, and pods that were refused.
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
	_, volumeErr := w.factory.Core().V1().PersistentVolumes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(added any) {
			if pv, ok := added.(*corev1.PersistentVolume); ok && len(volumesOf([]*corev1.PersistentVolume{pv})) == 1 && numaLabel(pv) != pv.Labels[driver.NUMANodeKey] {
				w.notice()
			}
		}})
	_, podErr := w.leading.failed.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(added any) {
			if pod, ok := added.(*corev1.Pod); ok && pod.Status.Reason == topologyAffinityError {
				w.notice()
			}
		}})
	return errors.Join(classErr, claimErr, volumeErr, podErr)
}

func (w *watcher) notice() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// look looks at everything once and returns how many nodes it has asked. What
// cannot be read is logged and looked at again the next time.
func (w *watcher) look(ctx context.Context, a *announcer) int {
	pods, podErr := w.nodePods()
	findings, err := w.findings(ctx, pods)
	if err := errors.Join(podErr, err); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "The cluster could not be looked at")
		w.metrics.failures.Inc()
		return len(pods)
	}
	if ctx.Err() == nil {
		a.announce(findings)
	}
	return len(pods)
}

func (w *watcher) findings(ctx context.Context, pods []*corev1.Pod) ([]finding, error) {
	classes, classErr := w.classes.List(labels.Everything())
	claims, claimErr := w.claims.List(labels.Everything())
	all, volumeErr := w.volumes.List(labels.Everything())
	annotations, nodeErr := w.nodeAnnotations()
	waiting, waitingErr := w.waitingPods(ctx, claims, classes)
	refused, refusedErr := w.failed.List(labels.Everything())
	if err := errors.Join(classErr, claimErr, volumeErr, nodeErr, waitingErr, refusedErr); err != nil {
		return nil, err
	}
	present, drivers := map[string]bool{}, map[string]bool{}
	for node := range annotations {
		present[node] = true
	}
	for _, pod := range pods {
		drivers[pod.Spec.NodeName] = true
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
	found = append(found, findingsOfUnserved(reported.reports, volumes)...)
	found = append(found, findingsOfPods(reported.reports, volumes, w.options.WebhookAddress != "")...)
	found = append(found, findingsOfRefused(refused)...)
	found = append(found, findingsOfOrphans(lastingOrphans)...)
	w.metrics.setMemory(reported.reports)
	return append(found, w.change(ctx, seen{claims, classes, volumes, reported.reports, annotations, present, drivers})...), nil
}

// seen is what was seen at one look.
type seen struct {
	claims      []*corev1.PersistentVolumeClaim
	classes     []*storagev1.StorageClass
	volumes     []*corev1.PersistentVolume
	reports     []driver.Report
	annotations map[string]string // MemoryAnnotation of each node
	present     map[string]bool   // nodes of the cluster
	drivers     map[string]bool   // nodes with a driver
}

// change changes what the controller keeps: labels, annotations, and claims that
// wait for nobody. What fails is tried again at the next look.
func (w *watcher) change(ctx context.Context, s seen) []finding {
	moreLabels, labelErr := w.label(ctx, s.volumes)
	var moreAnnotations bool
	var annotationErr error
	if w.options.AnnotateNodes {
		moreAnnotations, annotationErr = w.annotate(ctx, s.reports, s.annotations, s.drivers)
	}
	found, claimErr := w.giveBack(ctx, w.stuck.look(s.claims, s.classes, s.present, s.drivers))
	if err := errors.Join(labelErr, annotationErr, claimErr); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Not everything could be brought up to date")
		w.metrics.failures.Inc()
	}
	if moreLabels || moreAnnotations {
		w.notice()
	}
	return found
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

// nodeAnnotations returns the nodes of the cluster with what they say of their
// memory.
func (w *watcher) nodeAnnotations() (map[string]string, error) {
	list, err := w.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	annotations := map[string]string{}
	for _, node := range list {
		annotations[node.Name] = node.Annotations[MemoryAnnotation]
	}
	return annotations, nil
}

// nodePods returns the pods of the driver that are not about to end.
func (w *watcher) nodePods() ([]*corev1.Pod, error) {
	list, err := w.drivers.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("pods of the driver: %w", err)
	}
	return slices.DeleteFunc(list, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }), nil
}
