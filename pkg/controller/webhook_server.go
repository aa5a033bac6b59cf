package controller

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// webhookServer is the webhook with all that it needs. Each process of the
// controller serves it; one of them keeps its certificate. The zero value serves
// nothing and is always ready.
type webhookServer struct {
	address      string
	handler      *podWebhook
	certificates *certificates
	factory      informers.SharedInformerFactory
	synced       []cache.InformerSynced
}

// newWebhookServer returns one that has not started.
func newWebhookServer(client kubernetes.Interface, o Options, m *controllerMetrics, factory informers.SharedInformerFactory) *webhookServer {
	if o.WebhookAddress == "" {
		return &webhookServer{}
	}
	claims, volumes, classes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes(), factory.Storage().V1().StorageClasses()
	p := &claimPlacer{client: o.WebhookClient, claims: claims.Lister(), volumes: volumes.Lister(), classes: classes.Lister()}
	return &webhookServer{address: o.WebhookAddress, factory: factory, certificates: newCertificates(client, o),
		handler: &podWebhook{place: p.place, metrics: m},
		synced:  []cache.InformerSynced{claims.Informer().HasSynced, volumes.Informer().HasSynced, classes.Informer().HasSynced}}
}

// start serves until ctx ends.
func (s *webhookServer) start(ctx context.Context, group *errgroup.Group) {
	if s.address == "" {
		return
	}
	s.factory.Start(ctx.Done())
	group.Go(func() error { s.certificates.follow(ctx); return nil })
	group.Go(func() error { return serveWebhook(ctx, s.address, s.handler, s.certificates.get) })
}

// lead keeps the certificate until ctx ends.
func (s *webhookServer) lead(ctx context.Context, group *errgroup.Group) {
	if s.address != "" {
		group.Go(func() error { s.certificates.keep(ctx); return nil })
	}
}

// ready says why the webhook cannot answer yet; the API server is not sent to a
// process that is not ready.
func (s *webhookServer) ready() error {
	if s.address == "" {
		return nil
	}
	for _, synced := range s.synced {
		if !synced() {
			return errors.New("the webhook does not know all claims and volumes yet")
		}
	}
	if _, err := s.certificates.get(); err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	return nil
}
