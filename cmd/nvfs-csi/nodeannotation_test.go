package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// nodeServer is an API server that knows one node; "" answers that it fails.
func nodeServer(t *testing.T) (client kubernetes.Interface, flush *atomic.Value) {
	t.Helper()
	flush = &atomic.Value{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		value := flush.Load()
		if r.URL.Path != "/api/v1/nodes/node-1" || value == nil {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		node := corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		if value != "" {
			node.Annotations = map[string]string{driver.FlushModeAnnotation: value.(string)}
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(node); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return client, flush
}

func TestNodeAnnotationOutlivesTheAPIServer(t *testing.T) {
	client, flush := nodeServer(t)
	dir := t.TempDir()
	start := func() *nodeAnnotation {
		t.Helper()
		a, err := newNodeAnnotation(client, "node-1", dir)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := start()
	if err := a.refresh(t.Context()); err == nil || a.get() != "" {
		t.Errorf("a server that refuses: %q, %v", a.get(), err)
	}
	for _, value := range []string{"nt", "", "clwb"} {
		flush.Store(value)
		if err := a.refresh(t.Context()); err != nil || a.get() != value {
			t.Errorf("annotation %q: read %q, %v", value, a.get(), err)
		}
		if again := start(); again.get() != value {
			t.Errorf("annotation %q is %q after a restart without the API server", value, again.get())
		}
	}
}
