package controller

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// vault is an API server that has one Secret and one MutatingWebhookConfiguration.
type vault struct {
	t      *testing.T
	server *httptest.Server

	mu     sync.Mutex
	secret *corev1.Secret
	hook   *admissionregistrationv1.MutatingWebhookConfiguration
	log    []string // what was changed, in order
	fail   string   // method and path suffix that fail
}

func newVault(t *testing.T) *vault {
	v := &vault{t: t,
		secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hook", Namespace: "nvfs-csi", ResourceVersion: "1"}},
		hook: &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "numa"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: WebhookName}}}}
	v.server = httptest.NewServer(http.HandlerFunc(v.serve))
	t.Cleanup(v.server.Close)
	return v
}

func (v *vault) serve(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	what := r.Method + " " + r.URL.Path
	w.Header().Set("Content-Type", "application/json")
	var answer any
	var err error
	switch {
	case v.fail != "" && strings.HasPrefix(what, v.fail):
		http.Error(w, "{}", http.StatusInternalServerError)
		return
	case what == "GET /api/v1/namespaces/nvfs-csi/secrets/hook":
		answer = v.secret
	case what == "PUT /api/v1/namespaces/nvfs-csi/secrets/hook":
		var secret corev1.Secret
		err = json.NewDecoder(r.Body).Decode(&secret)
		v.secret, answer, v.log = &secret, &secret, append(v.log, "secret")
	case what == "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/numa":
		answer = v.hook
	case what == "PATCH /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/numa":
		var patch admissionregistrationv1.MutatingWebhookConfiguration
		err = json.NewDecoder(r.Body).Decode(&patch)
		if len(patch.Webhooks) != 1 || patch.Webhooks[0].Name != WebhookName || r.Header.Get("Content-Type") != "application/strategic-merge-patch+json" {
			v.t.Errorf("patch %+v", patch)
			return
		}
		v.hook.Webhooks[0].ClientConfig.CABundle = patch.Webhooks[0].ClientConfig.CABundle
		answer, v.log = v.hook, append(v.log, "configuration")
	default:
		http.Error(w, what+" is not allowed", http.StatusForbidden)
		return
	}
	if err != nil {
		v.t.Error(err)
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		v.t.Error(err)
	}
}

func (v *vault) client() kubernetes.Interface {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: v.server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		v.t.Fatal(err)
	}
	return client
}

func (v *vault) certificates(now *time.Time) *certificates {
	c := newCertificates(v.client(), Options{Namespace: "nvfs-csi", WebhookService: "svc", WebhookSecret: "hook", WebhookConfiguration: "numa"})
	c.now = func() time.Time { return *now }
	return c
}

// trusted fails unless the API server, which trusts what it was told of, accepts
// what a process serves.
func (v *vault) trusted(c *certificates, now time.Time) {
	v.t.Helper()
	certificate, err := c.get()
	if err != nil {
		v.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	v.mu.Lock()
	bundle := v.hook.Webhooks[0].ClientConfig.CABundle
	v.mu.Unlock()
	if !roots.AppendCertsFromPEM(bundle) {
		v.t.Fatal("the API server trusts nobody")
	}
	if _, err := certificate.Leaf.Verify(x509.VerifyOptions{DNSName: "svc.nvfs-csi.svc", Roots: roots, CurrentTime: now}); err != nil {
		v.t.Error(err)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCertificateIsMadeAndReplaced follows two processes for a year. At no time
// does one serve what the API server does not trust.
func TestCertificateIsMadeAndReplaced(t *testing.T) {
	v, now := newVault(t), time.Now()
	leader, standby := v.certificates(&now), v.certificates(&now)
	if err := standby.load(t.Context()); err != errNoCertificate {
		t.Errorf("an empty Secret: %v", err)
	}
	replaced := 0
	var before []byte
	for day := range 365 {
		now = now.Add(24 * time.Hour)
		ok(t, leader.renew(t.Context()))
		if day > 0 { // who has not looked yet serves the old one
			v.trusted(leader, now)
			v.trusted(standby, now)
		}
		ok(t, standby.load(t.Context()))
		ok(t, leader.load(t.Context()))
		v.trusted(leader, now)
		v.trusted(standby, now)
		certificate, err := standby.get()
		ok(t, err)
		if !bytes.Equal(before, certificate.Certificate[0]) {
			before, replaced = certificate.Certificate[0], replaced+1
		}
	}
	if replaced < 6 || replaced > 7 { // every 60 days, and the first one
		t.Errorf("there were %d certificates in a year", replaced)
	}
	if n := bytes.Count(v.secret.Data[secretAuthority], []byte("BEGIN CERTIFICATE")); n > 2 {
		t.Errorf("%d authorities are kept", n)
	}
	// The API server is always told first.
	for i := 0; i < len(v.log); i += 2 {
		if v.log[i] != "configuration" || v.log[i+1] != "secret" {
			t.Fatalf("changes in the order %v", v.log)
		}
	}
}

func TestCertificateIsMadeAnewWhenItIsNoUse(t *testing.T) {
	for name, spoil := range map[string]func(*vault){
		"a key of another certificate": func(v *vault) {
			other, err := makeCertificate("svc.nvfs-csi.svc", time.Now())
			ok(t, err)
			v.secret.Data[secretKey] = other.key
		},
		"a certificate of another host": func(v *vault) {
			other, err := makeCertificate("svc.elsewhere.svc", time.Now())
			ok(t, err)
			v.secret.Data = map[string][]byte{secretAuthority: other.authority, secretCertificate: other.certificate, secretKey: other.key}
		},
		"another authority": func(v *vault) {
			other, err := makeCertificate("svc.nvfs-csi.svc", time.Now())
			ok(t, err)
			v.secret.Data[secretAuthority] = other.authority
		},
		"junk":              func(v *vault) { v.secret.Data[secretCertificate] = []byte("x") },
		"an emptied Secret": func(v *vault) { v.secret.Data = nil },
	} {
		t.Run(name, func(t *testing.T) {
			v, now := newVault(t), time.Now()
			c := v.certificates(&now)
			ok(t, c.renew(t.Context()))
			spoil(v)
			ok(t, c.renew(t.Context()))
			ok(t, c.load(t.Context()))
			v.trusted(c, now)
			changes := len(v.log)
			ok(t, c.renew(t.Context()))
			if len(v.log) != changes {
				t.Errorf("a good certificate was replaced: %v", v.log)
			}
		})
	}
}

// TestBundleIsRestored: whoever applies the chart again may take it away.
func TestBundleIsRestored(t *testing.T) {
	v, now := newVault(t), time.Now()
	c := v.certificates(&now)
	ok(t, c.renew(t.Context()))
	ok(t, c.load(t.Context()))
	v.hook.Webhooks[0].ClientConfig.CABundle = nil
	ok(t, c.renew(t.Context()))
	v.trusted(c, now)
}

func TestCertificateSurvivesAPIServerTrouble(t *testing.T) {
	v, now := newVault(t), time.Now()
	c := v.certificates(&now)
	ok(t, c.renew(t.Context()))
	ok(t, c.load(t.Context()))
	now = now.Add(70 * 24 * time.Hour)
	for _, trouble := range []string{"PATCH", "PUT"} {
		v.fail = trouble
		if err := c.renew(t.Context()); err == nil {
			t.Errorf("%s fails and nobody says so", trouble)
		}
		ok(t, c.load(t.Context()))
		v.trusted(c, now)
	}
	v.fail = ""
	ok(t, c.renew(t.Context()))
	v.trusted(c, now)
	ok(t, c.load(t.Context()))
	v.trusted(c, now)
	v.fail = "GET"
	if err := c.load(t.Context()); err == nil || !strings.Contains(err.Error(), "install the chart again") {
		t.Errorf("error %v", err)
	}
	v.trusted(c, now)
}

// TestWebhookOverTLS serves a real connection, with the certificate that the
// processes have made by themselves.
func TestWebhookOverTLS(t *testing.T) {
	v, now := newVault(t), time.Now()
	c := v.certificates(&now)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() { c.keep(ctx) })
	work.Go(func() { c.follow(ctx) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	address := listener.Addr().String()
	ok(t, listener.Close())
	h, _ := newStock(t).handler()
	work.Go(func() {
		if err := serveWebhook(ctx, address, h, c.get); err != nil {
			t.Errorf("webhook: %v", err)
		}
	})
	raw, err := json.Marshal(user("on1"))
	ok(t, err)
	body, err := json.Marshal(map[string]any{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": requestFor(raw)})
	ok(t, err)
	deadline := time.Now().Add(time.Minute)
	for {
		roots := x509.NewCertPool()
		v.mu.Lock()
		roots.AppendCertsFromPEM(v.hook.Webhooks[0].ClientConfig.CABundle)
		v.mu.Unlock()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "svc.nvfs-csi.svc", MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
		response, err := client.Post("https://"+address+WebhookPath, "application/json", bytes.NewReader(body))
		if err == nil {
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("HTTP %s", response.Status)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
