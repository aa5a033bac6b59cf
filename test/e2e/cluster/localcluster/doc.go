// Package localcluster runs a real Kubernetes cluster with two nodes on one
// machine, for tests and for developers. It needs root, Linux and the Debian
// packages that setup.sh installs; everything else is built from Go modules.
//
// A node is a set of namespaces (network, mount, PID, UTS, IPC) with a
// containerd, a kubelet and a kube-proxy of its own, which find their
// directories where a real node has them. The control plane has a network
// namespace too, so nothing listens in the machine's own: clients enter that of
// the control plane. Images come from local files; there is no registry.
//
// Nodes share the root filesystem and the cgroup hierarchy of the machine. What
// they write to is mounted over. Down leaves nothing behind and says so if it
// could not.
package localcluster
