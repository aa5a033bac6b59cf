package localcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// DefaultDir holds all files of the cluster.
	DefaultDir = "/var/lib/nvfs-e2e"
	// memoryDir holds the memory of the nodes: it outlives a node that is
	// killed, as persistent memory would.
	memoryDir = "/dev/shm/nvfs-cluster"
	// NodeMemory is where a node finds its memory.
	NodeMemory = "/run/nvfs-emulated"

	prefix         = "nvfs-e2e-" // of network namespaces and cgroups
	controlPlaneNS = prefix + "cp"
	controlPlaneIP = "198.18.0.1"
	apiServer      = "https://" + controlPlaneIP + ":6443"
	serviceCIDR    = "10.96.0.0/16"
	podCIDR        = "198.18.0.0/16"
)

// Node describes one node.
type Node struct {
	Name    string `json:"name"`
	IP      string `json:"ip"`
	PodNet  string `json:"podNet"` // the first three bytes of the addresses of its pods
	Dir     string `json:"dir"`
	Memory  string `json:"memory"`
	Cluster string `json:"cluster"` // directory of the cluster
	Bin     string `json:"bin"`     // directory of the binaries
}

func (n Node) netns() string  { return prefix + n.Name }
func (n Node) cgroup() string { return prefix + n.Name }

// Cluster is a cluster whose files are in Dir. It may or may not run.
type Cluster struct {
	Dir   string
	Bin   string // binaries of Kubernetes
	Nodes []Node
}

// New returns the cluster with two nodes in dir, with the binaries in bin.
func New(dir, bin string) *Cluster {
	c := &Cluster{Dir: dir, Bin: bin}
	for i, name := range []string{"n1", "n2"} {
		c.Nodes = append(c.Nodes, Node{
			Name: name, IP: fmt.Sprintf("198.18.0.%d", 11+i), PodNet: fmt.Sprintf("198.18.%d", 11+i),
			Dir: filepath.Join(dir, name), Memory: filepath.Join(memoryDir, name), Cluster: dir, Bin: bin,
		})
	}
	return c
}

// Node returns the node with that name.
func (c *Cluster) Node(name string) (Node, error) {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("there is no node %q", name)
}

func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.Dir}, parts...)...)
}

// Kubeconfig is the administrator's; its server is reached from the network
// namespace of the control plane only.
func (c *Cluster) Kubeconfig() string { return c.path("pki", "admin.kubeconfig") }

// Images is the directory of images that every node loads when it starts.
func (c *Cluster) Images() string { return c.path("images") }

// Logs is the directory of the logs of the control plane.
func (c *Cluster) Logs() string { return c.path("log") }

// Exists reports whether the cluster is up, or was not taken down.
func (c *Cluster) Exists() bool {
	_, err := os.Stat(c.Dir)
	return !errors.Is(err, fs.ErrNotExist)
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
