package controller

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

const (
	// WebhookPath is where pods are mutated.
	WebhookPath = "/mutate-pods"
	// decisionTimeout is less than the API server waits for the webhook (2 s).
	decisionTimeout = 1500 * time.Millisecond
	// maxReview is more than an AdmissionReview of the largest pod has.
	maxReview = 8 << 20
)

// podWebhook lets pods ask for CPUs beside their volumes. Whatever fails, the pod
// is admitted as it is.
type podWebhook struct {
	place   placer
	metrics *controllerMetrics
}

// ServeHTTP answers one AdmissionReview.
func (h *podWebhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		http.Error(w, "Content-Type must be application/json", http.StatusUnsupportedMediaType)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("no AdmissionReview with a request: %v", err), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), decisionTimeout)
	defer cancel()
	answer := admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}}
	answer.Response = h.review(ctx, review.Request)
	answer.Response.UID = review.Request.UID
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		klog.V(2).InfoS("An answer of the webhook was not delivered", "reason", err.Error())
	}
}

// review decides about one pod. It always admits it.
func (h *podWebhook) review(ctx context.Context, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	response := &admissionv1.AdmissionResponse{Allowed: true}
	if req.Operation != admissionv1.Create || req.Resource.Resource != "pods" || req.SubResource != "" {
		return response
	}
	patch, v, err := h.mutate(ctx, req)
	h.metrics.webhook.WithLabelValues(v.decision).Inc()
	if err != nil {
		klog.ErrorS(err, "A pod is admitted without being aligned with its volumes", "namespace", req.Namespace, "pod", req.Name)
		response.Warnings = []string{"nvfs-csi: the pod is not aligned with its persistent memory: " + err.Error()}
		return response
	}
	klog.V(4).InfoS("Decided about a pod", "namespace", req.Namespace, "pod", req.Name, "decision", v.decision, "numaNode", v.node)
	if v.warning != "" {
		response.Warnings = []string{"nvfs-csi: " + v.warning}
	}
	if len(patch) > 0 {
		kind := admissionv1.PatchTypeJSONPatch
		response.Patch, response.PatchType = patch, &kind
	}
	return response
}

func (h *podWebhook) mutate(ctx context.Context, req *admissionv1.AdmissionRequest) ([]byte, verdict, error) {
	failed := verdict{decision: decisionFailed}
	var pod corev1.Pod
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return nil, failed, fmt.Errorf("pod: %w", err)
	}
	v, err := decide(ctx, req.Namespace, &pod, h.place)
	if err != nil {
		return nil, failed, err
	}
	operations, err := v.patch(req.Object.Raw)
	if err != nil || len(operations) == 0 {
		return nil, v, err
	}
	patch, err := json.Marshal(operations)
	return patch, v, err
}

// serveWebhook serves it over TLS until ctx ends.
func serveWebhook(ctx context.Context, address string, handler http.Handler, certificate func() (*tls.Certificate, error)) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+WebhookPath, handler)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() }}}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	klog.InfoS("Serving the webhook", "address", listener.Addr().String())
	select {
	case err := <-served:
		return fmt.Errorf("webhook on %s: %w", address, err)
	case <-ctx.Done():
	}
	err = server.Close() // the API server admits pods without an answer
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}
