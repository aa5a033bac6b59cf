// Package deviceplugin offers the kubelet one extended resource for each NUMA node
// that has persistent memory, csi.nvfs.dev/numa-N. The resource stands for no
// device. It carries a topology hint: a container that asks for it is given CPUs
// and memory of that NUMA node by the kubelet's Topology Manager, beside the
// volume that the container mounts. CSI has no such hint.
//
// The package speaks the kubelet's device plugin API v1beta1: a gRPC server for
// each resource on a socket in the kubelet's directory, announced on the kubelet's
// own socket there. A kubelet that starts removes all sockets and knows nobody, so
// the directory is watched and everything is announced anew.
package deviceplugin
