package controller

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// apiServer is as much of an API server as the controller uses: lists, watches,
// one lease and events.
type apiServer struct {
	t      *testing.T
	server *httptest.Server
	events chan corev1.Event
	done   chan struct{} // closed when watches are to end

	mu      sync.Mutex
	version int
	objects map[string][]any    // by path of the list
	single  map[string]any      // by path of the object
	watches map[string]chan any // by path; one watch each
	lease   *coordinationv1.Lease
	patches chan patch
}

// patch is a change that was asked for.
type patch struct {
	path string
	body map[string]any
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{t: t, events: make(chan corev1.Event, 100), done: make(chan struct{}), version: 1, objects: map[string][]any{}, single: map[string]any{}, patches: make(chan patch, 100), watches: map[string]chan any{}}
	s.server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		close(s.done)
		s.server.Close()
	})
	return s
}

func (s *apiServer) client() kubernetes.Interface {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// add adds an object to a list and tells the watch of that list. What a watch
// is told needs a kind.
func (s *apiServer) add(path string, object any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.objects[path] = append(s.objects[path], object)
	if watch := s.watches[path]; watch != nil {
		watch <- map[string]any{"type": "ADDED", "object": object}
	}
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/events"):
		s.addEvent(w, r)
	case strings.Contains(r.URL.Path, "/leases"):
		s.serveLease(w, r)
	case r.Method == http.MethodPatch:
		s.addPatch(w, r)
	case r.Method != http.MethodGet:
		http.Error(w, "the controller makes and deletes nothing", http.StatusForbidden)
	case s.get(r.URL.Path) != nil:
		s.reply(w, http.StatusOK, s.get(r.URL.Path))
	case !isList(r.URL.Path):
		s.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.URL.Query().Get("sendInitialEvents") != "":
		s.reply(w, http.StatusUnprocessableEntity, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	default:
		s.mu.Lock()
		// Without a kind it is what was asked for.
		list := map[string]any{"metadata": map[string]string{"resourceVersion": fmt.Sprint(s.version)}, "items": append([]any{}, s.objects[r.URL.Path]...)}
		s.mu.Unlock()
		s.reply(w, http.StatusOK, list)
	}
}

// isList reports whether a path is that of a list: the name of a kind ends with s.
func isList(path string) bool {
	return strings.HasSuffix(path, "s") || strings.HasSuffix(path, "classes")
}

// set makes a single object known, which is in no list.
func (s *apiServer) set(path string, object any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.single[path] = object
}

func (s *apiServer) get(path string) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.single[path]
}

// addPatch notes a patch and answers with an object of which only the name is
// right.
func (s *apiServer) addPatch(w http.ResponseWriter, r *http.Request) {
	p := patch{path: r.URL.Path}
	if err := json.NewDecoder(r.Body).Decode(&p.body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.patches <- p
	s.reply(w, http.StatusOK, map[string]any{"metadata": map[string]any{"name": path.Base(r.URL.Path)}})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	watch := make(chan any, 100)
	s.mu.Lock()
	s.watches[r.URL.Path] = watch
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	flusher := w.(http.Flusher)
	flusher.Flush()
	for {
		select {
		case event := <-watch:
			if json.NewEncoder(w).Encode(event) != nil {
				return
			}
			flusher.Flush()
		case <-r.Context().Done():
			return
		case <-s.done:
			return
		}
	}
}

func (s *apiServer) addEvent(w http.ResponseWriter, r *http.Request) {
	var event corev1.Event
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.events <- event
	s.reply(w, http.StatusCreated, event)
}

func (s *apiServer) serveLease(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method != http.MethodGet {
		var lease coordinationv1.Lease
		if err := json.NewDecoder(r.Body).Decode(&lease); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if s.lease != nil && lease.ResourceVersion != s.lease.ResourceVersion {
			s.fail(w, http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		s.version++
		lease.ResourceVersion = fmt.Sprint(s.version)
		s.lease = &lease
	}
	if s.lease == nil {
		s.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	s.reply(w, http.StatusOK, s.lease)
}

// holder returns who holds the lease.
func (s *apiServer) holder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil || s.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *s.lease.Spec.HolderIdentity
}

func (s *apiServer) fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	s.reply(w, code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code)})
}

func (s *apiServer) reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.t.Logf("reply: %v", err)
	}
}
