package localcluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// RunNodeInit is process 1 of a node, in the namespaces of the node: it makes
// the mounts, starts containerd, the kubelet and kube-proxy, starts them again
// when they end, and reaps what has lost its parent. It does not return unless
// something fails.
func RunNodeInit(configFile string) error {
	var n Node
	if err := readJSON(configFile, &n); err != nil {
		return err
	}
	init := &nodeInitProcess{node: n, waiting: map[int]chan syscall.WaitStatus{}}
	go init.reap()
	if err := init.prepare(); err != nil {
		return err
	}
	return init.serve()
}

type nodeInitProcess struct {
	node Node

	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

// reap collects all children, its own and adopted ones.
func (p *nodeInitProcess) reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for range ended {
		for {
			var status syscall.WaitStatus
			// The lock is held so that start registers a child before its
			// end is looked for.
			p.mu.Lock()
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if ch, ok := p.waiting[pid]; ok && pid > 0 {
				ch <- status
				delete(p.waiting, pid)
			}
			p.mu.Unlock()
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}

// start starts a command with its output in a log file.
func (p *nodeInitProcess) start(logName string, argv ...string) (int, <-chan syscall.WaitStatus, error) {
	log, err := os.OpenFile(filepath.Join(p.node.Dir, "log", logName+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, nil, err
	}
	defer log.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	child, err := os.StartProcess(argv[0], argv, &os.ProcAttr{Dir: "/", Env: os.Environ(), Files: []*os.File{nil, log, log}})
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", argv[0], err)
	}
	ch := make(chan syscall.WaitStatus, 1)
	p.waiting[child.Pid] = ch
	return child.Pid, ch, nil
}

// run runs a command to its end.
func (p *nodeInitProcess) run(logName string, argv ...string) error {
	_, ended, err := p.start(logName, argv...)
	if err != nil {
		return err
	}
	if status := <-ended; status.ExitStatus() != 0 {
		return fmt.Errorf("%s ended with %d", strings.Join(argv, " "), status.ExitStatus())
	}
	return nil
}

// keep starts a command whenever it has ended. Its number is in /run/NAME.pid.
func (p *nodeInitProcess) keep(name string, argv ...string) error {
	for {
		pid, ended, err := p.start(name, argv...)
		if err != nil {
			return err
		}
		if err := os.WriteFile("/run/"+name+".pid", fmt.Appendln(nil, pid), 0o644); err != nil {
			return err
		}
		status := <-ended
		fmt.Fprintf(os.Stderr, "%s: %s ended: exit %d, signal %v\n", time.Now().Format(time.TimeOnly), name, status.ExitStatus(), status.Signal())
		time.Sleep(time.Second) // a program that fails at once must not take the machine
	}
}

// serve runs the programs of the node.
func (p *nodeInitProcess) serve() error {
	n, failed := p.node, make(chan error, 3)
	keep := func(name string, argv ...string) { go func() { failed <- p.keep(name, argv...) }() }
	keep("containerd", "/usr/bin/containerd", "--config", "/run/containerd.toml")
	if err := p.loadImages(); err != nil {
		return err
	}
	keep("kubelet", filepath.Join(n.Bin, "kubelet"), "--config=/run/kubelet.yaml", "--kubeconfig="+p.pki("node-"+n.Name+".kubeconfig"),
		"--hostname-override="+n.Name, "--node-ip="+n.IP, "--root-dir=/var/lib/kubelet", "--v=2")
	keep("kube-proxy", filepath.Join(n.Bin, "kube-proxy"), "--config=/run/kube-proxy.yaml", "--hostname-override="+n.Name)
	return <-failed
}

// loadImages waits for containerd and gives it all images of the cluster.
func (p *nodeInitProcess) loadImages() error {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		if _, err := os.Stat("/run/containerd/containerd.sock"); err == nil && p.run("ctr", "/usr/bin/ctr", "version") == nil {
			break
		}
		if time.Now().After(deadline) {
			return errors.New("containerd does not answer")
		}
		time.Sleep(pollInterval)
	}
	images, err := filepath.Glob(filepath.Join(p.node.Cluster, "images", "*.tar"))
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := p.run("ctr", "/usr/bin/ctr", "-n", "k8s.io", "images", "import", image); err != nil {
			return err
		}
	}
	return nil
}

func (p *nodeInitProcess) pki(file string) string {
	return filepath.Join(p.node.Cluster, "pki", file)
}

// prepare makes the node's own view of the filesystem.
func (p *nodeInitProcess) prepare() error {
	n := p.node
	if err := syscall.Sethostname([]byte(n.Name)); err != nil {
		return err
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	if err := detachStrayMounts(); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/var/log/pods", "/var/log/containers", "/etc/cni/net.d"} {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/run/lock", "/run/netns", "/run/cgroup", NodeMemory} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	binds := map[string]string{n.Memory: NodeMemory}
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(root, n.cgroup(), "cgroup.procs")); err == nil {
			binds[filepath.Join(root, n.cgroup())] = "/run/cgroup"
			break
		}
	}
	for _, dir := range []string{"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/lib/csi.nvfs.dev"} {
		binds[filepath.Join(n.Dir, filepath.Base(dir))] = dir
	}
	for source, target := range binds {
		if err := os.MkdirAll(source, 0o755); err != nil { // exists when it is memory or a cgroup
			return err
		}
		if err := syscall.Mount(source, target, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	if err := protectSysctls(); err != nil {
		return err
	}
	// Mounts of containers reach the node and other containers.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("shared root: %w", err)
	}
	return p.writeConfigs()
}

// detachStrayMounts removes, from this node's view, what is mounted on the
// machine for other purposes: a copy of such a mount would keep it busy there.
func detachStrayMounts() error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(table)), "\n")
	for i := len(lines) - 1; i >= 0; i-- { // the last mount of a place first
		fields := strings.Fields(lines[i])
		if len(fields) < 5 || !isStray(fields[4], lines[i]) {
			continue
		}
		// Octal escapes stand for blanks, which no mount point of ours has; one
		// that went with its parent is no mount point any more.
		err := syscall.Unmount(fields[4], syscall.MNT_DETACH)
		if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("stray mount %s: %w", fields[4], err)
		}
	}
	return nil
}

// isStray reports whether a mount has nothing to do with a node.
func isStray(mountpoint, line string) bool {
	for _, dir := range []string{"/tmp/", "/mnt/", "/dev/shm/"} {
		if strings.HasPrefix(mountpoint, dir) {
			return true
		}
	}
	_, source, _ := strings.Cut(line, " - ")
	return strings.HasPrefix(source, "fuse.")
}

// protectSysctls keeps the kubelet from changing settings of the machine: it
// finds the values that it wants in files that are mounted over them.
func protectSysctls() error {
	const dir = "/run/sysctl"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, "/proc/sys/"+name, "", syscall.MS_BIND, ""); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("/proc/sys/%s: %w", name, err)
		}
	}
	return nil
}

func (p *nodeInitProcess) writeConfigs() error {
	n := p.node
	values := strings.NewReplacer("NAME", n.Name, "NODE_IP", n.IP, "POD_NET", n.PodNet, "CGROUP", "/"+n.cgroup(), "PKI", filepath.Join(n.Cluster, "pki"),
		"POD_CIDR", podCIDR, "GATE", strings.ReplaceAll(featureGates, "=", ": "))
	for file, text := range map[string]string{
		"/etc/cni/net.d/10-bridge.conflist": cniConfig,
		"/run/containerd.toml":              containerdConfig,
		"/run/kubelet.yaml":                 kubeletConfig,
		"/run/kube-proxy.yaml":              kubeProxyConfig,
	} {
		if err := os.WriteFile(file, []byte(values.Replace(text)), 0o600); err != nil {
			return err
		}
	}
	return nil
}

const cniConfig = `{"cniVersion": "0.4.0", "name": "bridge", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "POD_NET.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

// AppArmor and oom_score_adj below its own are what a containerd in a container
// may not set.
const containerdConfig = `version = 2
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: CGROUP
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
address: NODE_IP
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: PKI/serving-NAME.crt
tlsPrivateKeyFile: PKI/serving-NAME.key
featureGates: {GATE}
oomScoreAdj: 0
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
syncFrequency: 10s
nodeStatusUpdateFrequency: 4s
volumeStatsAggPeriod: 10s
resolvConf: ""
clusterDNS: [10.96.0.10]
maxPods: 80
`

const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
bindAddress: 0.0.0.0
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection: {kubeconfig: PKI/proxy.kubeconfig}
clusterCIDR: POD_CIDR
detectLocalMode: ClusterCIDR
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// splitFields splits the content of a file at white space.
func splitFields(data []byte) []string { return strings.Fields(string(bytes.TrimSpace(data))) }
