package localcluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// featureGates are switched on everywhere: what the driver offers beyond the
// stable API.
const featureGates = "CSIVolumeHealth=true"

// auditPolicy logs what the accounts of the driver ask of the API server.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: ["system:serviceaccount:` + Namespace + `:nvfs-csi-node", "system:serviceaccount:` + Namespace + `:nvfs-csi-controller"]
  - level: None
`

// AuditLog is the log of the requests of the driver's accounts, one JSON object
// a line.
func (c *Cluster) AuditLog() string { return filepath.Join(c.Logs(), "audit.log") }

// components of the control plane, in the order in which they start.
var components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

func (c *Cluster) startControlPlane(ctx context.Context) error {
	if err := c.makeControlPlaneNetwork(ctx); err != nil {
		return err
	}
	for _, dir := range []string{c.path("etcd"), c.Logs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(c.path("audit.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	for i, name := range components {
		argv := append(append(inNetns(controlPlaneNS), filepath.Join(c.Bin, name)), c.arguments(name)...)
		p, err := startDetached(c.path(name+".pid"), filepath.Join(c.Logs(), name+".log"), argv...)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if name != "kube-apiserver" {
			continue
		}
		// Everything after it would only fail and try again.
		err = poll(ctx, "API server", func() (bool, error) {
			if !p.alive() {
				return false, fmt.Errorf("%s has ended: %s", components[i], tail(filepath.Join(c.Logs(), name+".log"), 5))
			}
			return c.kubectl(ctx, "get", "--raw", "/readyz") == nil, nil
		})
		if err != nil {
			return err
		}
	}
	return poll(ctx, "service accounts", func() (bool, error) {
		return c.kubectl(ctx, "get", "serviceaccount", "default") == nil, nil
	})
}

func (c *Cluster) makeControlPlaneNetwork(ctx context.Context) error {
	in := inNetns(controlPlaneNS)
	return runAll(ctx,
		[]string{"ip", "netns", "add", controlPlaneNS},
		append(in, "ip", "link", "set", "lo", "up"),
		append(in, "ip", "link", "add", "br0", "type", "bridge"),
		append(in, "ip", "addr", "add", controlPlaneIP+"/24", "dev", "br0"),
		append(in, "ip", "link", "set", "br0", "up"),
		append(in, "sysctl", "-qw", "net.ipv4.ip_forward=1"),
	)
}

func runAll(ctx context.Context, commands ...[]string) error {
	for _, argv := range commands {
		if err := run(ctx, argv...); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) kubectl(ctx context.Context, args ...string) error {
	return run(ctx, append(append(inNetns(controlPlaneNS), filepath.Join(c.Bin, "kubectl"), "--kubeconfig", c.Kubeconfig()), args...)...)
}

// arguments are the command line of a component.
func (c *Cluster) arguments(component string) []string {
	pki := func(file string) string { return c.path("pki", file) }
	auth := func(name string) []string {
		return []string{"--kubeconfig=" + pki(name), "--authentication-kubeconfig=" + pki(name), "--authorization-kubeconfig=" + pki(name),
			"--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false", "--feature-gates=" + featureGates}
	}
	switch component {
	case "etcd":
		return []string{"--data-dir=" + c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380"}
	case "kube-apiserver":
		return []string{"--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--advertise-address=" + controlPlaneIP, "--secure-port=6443",
			"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"), "--client-ca-file=" + pki("ca.crt"),
			"--kubelet-client-certificate=" + pki("kubelet-client.crt"), "--kubelet-client-key=" + pki("kubelet-client.key"),
			"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + pki("sa.pub"), "--service-account-signing-key-file=" + pki("sa.key"),
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true", "--service-cluster-ip-range=" + serviceCIDR,
			"--requestheader-client-ca-file=" + pki("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file=" + pki("front-proxy.crt"), "--proxy-client-key-file=" + pki("front-proxy.key"),
			"--audit-policy-file=" + c.path("audit.yaml"), "--audit-log-path=" + c.AuditLog(),
			"--enable-aggregator-routing=true", "--profiling=false", "--feature-gates=" + featureGates}
	case "kube-controller-manager":
		return append(auth("controller-manager.kubeconfig"), "--service-account-private-key-file="+pki("sa.key"), "--root-ca-file="+pki("ca.crt"),
			"--use-service-account-credentials", "--service-cluster-ip-range="+serviceCIDR)
	case "kube-scheduler":
		return auth("scheduler.kubeconfig")
	}
	panic("no component " + component)
}

// stopControlPlane stops it in reverse order.
func (c *Cluster) stopControlPlane() []error {
	var errs []error
	for i := len(components) - 1; i >= 0; i-- {
		p, err := readProcess(c.path(components[i] + ".pid"))
		if err == nil {
			err = p.stop(5 * time.Second)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", components[i], err))
		}
	}
	return errs
}
