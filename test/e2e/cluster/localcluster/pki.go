package localcluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki writes keys and certificates to a directory.
type pki struct {
	dir    string
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
	serial int64
}

// identity is what a certificate says.
type identity struct {
	name   string // of the files
	user   string
	group  string
	server bool
	ips    []string
	dns    []string
}

// writePKI makes everything that the cluster authenticates with.
func (c *Cluster) writePKI() error {
	p := &pki{dir: c.path("pki")}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	if err := p.makeCA(); err != nil {
		return err
	}
	identities := []identity{
		{name: "apiserver", user: "kube-apiserver", server: true, ips: []string{"127.0.0.1", "10.96.0.1", controlPlaneIP},
			dns: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}},
		{name: "admin", user: "admin", group: "system:masters"},
		{name: "controller-manager", user: "system:kube-controller-manager"},
		{name: "scheduler", user: "system:kube-scheduler"},
		{name: "proxy", user: "system:kube-proxy"},
		{name: "kubelet-client", user: "apiserver-kubelet-client", group: "system:masters"},
		{name: "front-proxy", user: "front-proxy-client"},
	}
	for _, n := range c.Nodes {
		identities = append(identities,
			identity{name: "node-" + n.Name, user: "system:node:" + n.Name, group: "system:nodes"},
			identity{name: "serving-" + n.Name, user: "system:node:" + n.Name, group: "system:nodes", server: true, ips: []string{n.IP}, dns: []string{n.Name}})
	}
	for _, id := range identities {
		if err := p.issue(id); err != nil {
			return fmt.Errorf("certificate %s: %w", id.name, err)
		}
	}
	return p.serviceAccountKey()
}

func (p *pki) makeCA() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := p.template("nvfs-e2e-ca", "")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	if p.ca, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	p.caKey = key
	return p.write("ca.crt", "CERTIFICATE", der)
}

func (p *pki) template(user, group string) *x509.Certificate {
	p.serial++
	subject := pkix.Name{CommonName: user}
	if group != "" {
		subject.Organization = []string{group}
	}
	return &x509.Certificate{SerialNumber: big.NewInt(p.serial), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0)}
}

func (p *pki) issue(id identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := p.template(id.user, id.group)
	template.KeyUsage, template.DNSNames = x509.KeyUsageDigitalSignature, id.dns
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if id.server {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, ip := range id.ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.ca, &key.PublicKey, p.caKey)
	if err != nil {
		return err
	}
	if err := p.write(id.name+".crt", "CERTIFICATE", der); err != nil {
		return err
	}
	if err := p.writeKey(id.name+".key", key); err != nil {
		return err
	}
	if id.server {
		return nil
	}
	return p.kubeconfig(id.name)
}

func (p *pki) serviceAccountKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := p.write("sa.pub", "PUBLIC KEY", public); err != nil {
		return err
	}
	return p.writeKey("sa.key", key)
}

func (p *pki) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return p.write(name, "EC PRIVATE KEY", der)
}

func (p *pki) write(name, kind string, der []byte) error {
	return os.WriteFile(filepath.Join(p.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

const kubeconfigFormat = `apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "%s", certificate-authority-data: %s}}]
users: [{name: e2e, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
current-context: e2e
`

func (p *pki) kubeconfig(name string) error {
	var parts []any
	for _, file := range []string{"ca.crt", name + ".crt", name + ".key"} {
		data, err := os.ReadFile(filepath.Join(p.dir, file))
		if err != nil {
			return err
		}
		parts = append(parts, base64.StdEncoding.EncodeToString(data))
	}
	text := fmt.Sprintf(kubeconfigFormat, append([]any{apiServer}, parts...)...)
	return os.WriteFile(filepath.Join(p.dir, name+".kubeconfig"), []byte(text), 0o600)
}
