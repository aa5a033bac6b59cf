package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

// HTTPHandler serves /healthz, /readyz, /metrics and the node's Report.
func (d *Driver) HTTPHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", d.HealthHandler())
	mux.HandleFunc("/readyz", d.handleReady)
	mux.Handle("/metrics", d.MetricsHandler())
	mux.HandleFunc("GET "+ReportPath, d.handleReport)
	return mux
}

// handleReady answers 503 while the driver waits for memory. It lives meanwhile
// and serves what is there, so that this is not a matter of /healthz.
func (d *Driver) handleReady(w http.ResponseWriter, _ *http.Request) {
	if err := d.settled(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

func (d *Driver) handleReport(w http.ResponseWriter, r *http.Request) {
	report, err := d.Report(r.Context())
	if err != nil {
		// Half a report would make volumes look as if they were gone.
		klog.ErrorS(err, "No report")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(report); err != nil {
		klog.V(2).InfoS("Report was not delivered", "reason", err.Error())
	}
}

// ServeHTTP serves a handler on a TCP address until ctx ends. An empty address
// serves nothing.
func ServeHTTP(ctx context.Context, address string, handler http.Handler) error {
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("HTTP: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	klog.InfoS("Serving HTTP", "address", listener.Addr().String())
	select {
	case err := <-served:
		return fmt.Errorf("HTTP on %s: %w", address, err)
	case <-ctx.Done():
	}
	// Nobody waits for an answer to a probe of a process that ends.
	err = server.Close()
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}
