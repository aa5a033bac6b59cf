package controller

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

const (
	classesPath = "/apis/storage.k8s.io/v1/storageclasses"
	claimsPath  = "/api/v1/persistentvolumeclaims"
	volumesPath = "/api/v1/persistentvolumes"
	nodesPath   = "/api/v1/nodes"
	podsPath    = "/api/v1/namespaces/nvfs-csi/pods"
)

// newCluster is an API server with one node, whose driver reports a volume that
// nobody knows.
func newCluster(t *testing.T) (*apiServer, Options) {
	t.Helper()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		report := driver.Report{Node: "n1", Regions: twoNodes().reports[0].Regions, Volumes: []driver.VolumeReport{{ID: "lost", Phase: "ready", Bytes: mib}}}
		if r.URL.Path != driver.ReportPath {
			http.NotFound(w, r)
			return
		}
		if err := json.NewEncoder(w).Encode(report); err != nil {
			t.Errorf("report: %v", err)
		}
	}))
	t.Cleanup(node.Close)
	address, err := url.Parse(node.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		t.Fatal(err)
	}
	s := newAPIServer(t)
	s.add(nodesPath, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	s.add(podsPath, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "nvfs-csi", Name: "node-n1"}, Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{PodIP: address.Hostname()}})
	return s, Options{Namespace: "nvfs-csi", Identity: "one", NodeSelector: "a=b", NodePort: port, Resync: time.Second, Version: "test"}
}

// start runs a controller and returns a function that ends it.
func start(t *testing.T, s *apiServer, o Options) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, s.client(), o) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("controller %s: %v", o.Identity, err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// await returns the next event with that reason on an object.
func (s *apiServer) await(reason, kind, name string) corev1.Event {
	s.t.Helper()
	for {
		select {
		case e := <-s.events:
			if e.Reason == reason && e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name {
				return e
			}
		case <-time.After(time.Minute):
			s.t.Fatalf("no event %s on %s %s", reason, kind, name)
		}
	}
}

func TestControllerTellsUsers(t *testing.T) {
	s, o := newCluster(t)
	s.add(classesPath, class("bad", "flushmode", "nt"))
	s.add(claimsPath, claim("bad", "10Mi"))
	s.add(volumesPath, volume("of-n9", "9", "n9"))
	stop := start(t, s, o)
	if e := s.await(ReasonInvalidParameters, "StorageClass", "bad"); e.Type != corev1.EventTypeWarning || e.Source.Component != component {
		t.Errorf("event %+v", e)
	}
	s.await(ReasonInvalidParameters, "PersistentVolumeClaim", "data")
	s.await(ReasonNodeGone, "PersistentVolume", "of-n9")
	s.await(ReasonOrphanVolume, "Node", "n1")
	// What comes later is noticed by the watch.
	s.add(classesPath, class("late", "flushMode", "movdir64b"))
	s.await(ReasonFlushModeNotOffered, "StorageClass", "late")
	stop()
	if holder := s.holder(); holder != "" {
		t.Errorf("the lease is still held by %q", holder)
	}
}

func TestOnlyTheLeaderWorks(t *testing.T) {
	s, o := newCluster(t)
	s.add(classesPath, class("bad", "x", "y"))
	stop := start(t, s, o)
	s.await(ReasonInvalidParameters, "StorageClass", "bad")
	second := o
	second.Identity = "two"
	start(t, s, second)
	if holder := s.holder(); holder != "one" {
		t.Errorf("the lease is held by %q", holder)
	}
	stop()
	// The other one takes over, and tells anew what it knows nothing of.
	s.await(ReasonInvalidParameters, "StorageClass", "bad")
	if holder := s.holder(); holder != "two" {
		t.Errorf("the lease is held by %q", holder)
	}
}

func TestOptions(t *testing.T) {
	_, good := newCluster(t)
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no namespace":       func(o *Options) { o.Namespace = "" },
		"no identity":        func(o *Options) { o.Identity = "" },
		"no selector":        func(o *Options) { o.NodeSelector = "" },
		"a selector of junk": func(o *Options) { o.NodeSelector = "a b" },
		"no port":            func(o *Options) { o.NodePort = 0 },
		"no resync":          func(o *Options) { o.Resync = 0 },
		"a bare webhook":     func(o *Options) { o.WebhookAddress = ":0" },
	} {
		bad := good
		change(&bad)
		if err := bad.Validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
