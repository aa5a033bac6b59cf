package controller

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// The certificate of the webhook is signed by an authority that is made for it
// alone and whose key is thrown away at once. Both are replaced together, before
// they expire. The new authority is announced to the API server first, beside the
// old one, and only then is the new certificate put into the Secret from which all
// processes take it: at no time is a certificate served that the API server has not
// been told of.

const (
	// certificateLife is how long a certificate is valid; it is replaced when a
	// third of that is left.
	certificateLife = 90 * 24 * time.Hour
	// clockSkew is how far the API server's clock may be behind.
	clockSkew = time.Hour
	// certificateInterval is how often the Secret is looked at, and
	// firstCertificateInterval as long as there is no certificate.
	certificateInterval      = time.Minute
	firstCertificateInterval = 2 * time.Second
	// certificateTimeout bounds one such look.
	certificateTimeout = 30 * time.Second
)

// The keys of the Secret.
const (
	secretAuthority   = "ca.crt" // the present one, and the one before
	secretCertificate = corev1.TLSCertKey
	secretKey         = corev1.TLSPrivateKeyKey
)

// WebhookName is that of the one webhook in the MutatingWebhookConfiguration.
const WebhookName = "numa.csi.nvfs.dev"

var errNoCertificate = errors.New("the webhook has no certificate yet")

// certificates keeps the certificate of the webhook. Its methods are safe for
// concurrent use.
type certificates struct {
	client        kubernetes.Interface
	namespace     string
	secret        string // its name
	configuration string // name of the MutatingWebhookConfiguration
	host          string // that the API server asks for
	now           func() time.Time

	current atomic.Pointer[tls.Certificate]
}

func newCertificates(client kubernetes.Interface, o Options) *certificates {
	return &certificates{client: client, namespace: o.Namespace, secret: o.WebhookSecret, configuration: o.WebhookConfiguration,
		host: o.WebhookService + "." + o.Namespace + ".svc", now: time.Now}
}

// get returns the certificate to serve.
func (c *certificates) get() (*tls.Certificate, error) {
	if certificate := c.current.Load(); certificate != nil {
		return certificate, nil
	}
	return nil, errNoCertificate
}

// follow takes what is in the Secret, again and again until ctx ends.
func (c *certificates) follow(ctx context.Context) {
	c.repeat(ctx, "The certificate of the webhook cannot be read; pods are not aligned with their volumes without it", c.load)
}

// keep makes certificates, replaces them in time and tells the API server of them,
// until ctx ends. One process does it.
func (c *certificates) keep(ctx context.Context) {
	c.repeat(ctx, "The certificate of the webhook cannot be kept; pods are not aligned with their volumes once it has expired", c.renew)
}

// repeat calls f at once and then regularly. The same failure is logged once.
func (c *certificates) repeat(ctx context.Context, complaint string, f func(context.Context) error) {
	logged := ""
	for {
		limited, cancel := context.WithTimeout(ctx, certificateTimeout)
		err := f(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != logged && !errors.Is(err, errNoCertificate) {
			klog.ErrorS(err, complaint, "secret", klog.KRef(c.namespace, c.secret), "configuration", c.configuration)
		}
		logged = text
		after := certificateInterval
		if c.current.Load() == nil || err != nil {
			after = firstCertificateInterval
		}
		timer := time.NewTimer(after)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (c *certificates) read(ctx context.Context) (*corev1.Secret, error) {
	secret, err := c.client.CoreV1().Secrets(c.namespace).Get(ctx, c.secret, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("secret (the chart makes it, empty; install the chart again if it was deleted): %w", err)
	}
	return secret, nil
}

func (c *certificates) load(ctx context.Context) error {
	secret, err := c.read(ctx)
	if err != nil {
		return err
	}
	if len(secret.Data[secretCertificate]) == 0 {
		return errNoCertificate // the leader is about to make one
	}
	return c.take(secret)
}

// take serves what is in the Secret from now on.
func (c *certificates) take(secret *corev1.Secret) error {
	certificate, err := tls.X509KeyPair(secret.Data[secretCertificate], secret.Data[secretKey])
	if err != nil {
		return fmt.Errorf("secret: %w", err)
	}
	if before := c.current.Load(); before == nil || !bytes.Equal(before.Certificate[0], certificate.Certificate[0]) {
		klog.InfoS("The webhook has a certificate", "host", c.host, "validUntil", certificate.Leaf.NotAfter)
		c.current.Store(&certificate)
	}
	return nil
}

// renew makes a new certificate if one is due, and makes sure that the API server
// knows the authority.
func (c *certificates) renew(ctx context.Context) error {
	secret, err := c.read(ctx)
	if err != nil {
		return err
	}
	reason := c.due(secret)
	if reason == "" {
		return c.announce(ctx, secret.Data[secretAuthority])
	}
	klog.InfoS("Making a certificate for the webhook", "host", c.host, "reason", reason)
	made, err := makeCertificate(c.host, c.now())
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	authority := append(made.authority, c.stillValid(secret.Data[secretAuthority])...)
	if err := c.announce(ctx, authority); err != nil {
		return err
	}
	secret = secret.DeepCopy()
	secret.Data = map[string][]byte{secretAuthority: authority, secretCertificate: made.certificate, secretKey: made.key}
	if _, err := c.client.CoreV1().Secrets(c.namespace).Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("secret: %w", err)
	}
	return nil
}

// due says why a new certificate has to be made; "" when it has not.
func (c *certificates) due(secret *corev1.Secret) string {
	if len(secret.Data[secretCertificate]) == 0 {
		return "there is none"
	}
	certificate, err := tls.X509KeyPair(secret.Data[secretCertificate], secret.Data[secretKey])
	if err != nil {
		return err.Error()
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data[secretAuthority])
	if _, err := certificate.Leaf.Verify(x509.VerifyOptions{DNSName: c.host, Roots: roots, CurrentTime: c.now()}); err != nil {
		return err.Error()
	}
	if left := certificate.Leaf.NotAfter.Sub(c.now()); left < certificateLife/3 {
		return "it expires in " + left.Round(time.Minute).String()
	}
	return ""
}

// stillValid returns the first authority of these, if it has not expired: the one
// whose certificate other processes may still serve for a moment.
func (c *certificates) stillValid(authorities []byte) []byte {
	block, _ := pem.Decode(authorities)
	if block == nil {
		return nil
	}
	authority, err := x509.ParseCertificate(block.Bytes)
	if err != nil || c.now().After(authority.NotAfter) {
		return nil
	}
	return pem.EncodeToMemory(block)
}

// announce tells the API server which authorities to trust.
func (c *certificates) announce(ctx context.Context, authority []byte) error {
	configurations := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	configuration, err := configurations.Get(ctx, c.configuration, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("MutatingWebhookConfiguration (the chart makes it; install the chart again if it was deleted): %w", err)
	}
	for _, webhook := range configuration.Webhooks {
		if webhook.Name == WebhookName && bytes.Equal(webhook.ClientConfig.CABundle, authority) {
			return nil
		}
	}
	patch, err := json.Marshal(map[string]any{"webhooks": []any{map[string]any{
		"name": WebhookName, "clientConfig": map[string]any{"caBundle": authority}}}})
	if err != nil {
		return err
	}
	if _, err := configurations.Patch(ctx, c.configuration, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("MutatingWebhookConfiguration: %w", err)
	}
	klog.InfoS("The API server trusts the certificate of the webhook", "configuration", c.configuration)
	return nil
}

// madeCertificate is a certificate with its key and its authority, PEM each.
type madeCertificate struct{ authority, certificate, key []byte }

// makeCertificate makes an authority and one certificate of it for a server.
func makeCertificate(host string, now time.Time) (madeCertificate, error) {
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return madeCertificate{}, err
	}
	authority := template("nvfs-csi webhook authority", now)
	authority.IsCA, authority.BasicConstraintsValid, authority.KeyUsage = true, true, x509.KeyUsageCertSign
	authority.MaxPathLenZero = true
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return madeCertificate{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return madeCertificate{}, err
	}
	server := template(host, now)
	server.DNSNames, server.KeyUsage, server.ExtKeyUsage = []string{host}, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, authority, key.Public(), authorityKey)
	if err != nil {
		return madeCertificate{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return madeCertificate{}, err
	}
	return madeCertificate{
		authority:   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorityDER}),
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: serverDER}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

func template(name string, now time.Time) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // crypto/rand never fails
	// A common name has at most 64 characters; the names that count are others.
	if len(name) > 64 {
		name = name[:64]
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(certificateLife)}
}
