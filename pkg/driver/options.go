package driver

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// Name is the name of the driver everywhere: in the CSIDriver object, as
// provisioner of a StorageClass and as prefix of the topology key.
const Name = "csi.nvfs.dev"

// TopologyKey is the one topology segment; its value is the node ID.
const TopologyKey = "topology." + Name + "/node"

// maxSocketPath is what sockaddr_un holds, without the terminator.
const maxSocketPath = 107

// Options are what an administrator sets.
type Options struct {
	Endpoint   string // unix:///absolute/path of the CSI socket
	NodeID     string // the node's name in the cluster
	StateDir   string // durable directory for one small file per volume
	KubeletDir string // the kubelet's root directory
	Register   bool   // announce the driver to the kubelet
	// KubeletEndpoint is the path of the CSI socket as the kubelet sees it; ""
	// when that is the path in Endpoint.
	KubeletEndpoint string
	// EraseWait is how long DeleteVolume waits for the erasure of a volume
	// before it answers Aborted; the erasure goes on.
	EraseWait time.Duration
	// SettleTimeout is how long after the start memory that is missing is
	// waited for before it is taken for lost; 0 waits for nothing.
	SettleTimeout time.Duration
	// FlushMode is what the flush mode auto means on this node; "" or auto: what
	// was measured. FlushModeFile, if it is given and exists, holds another
	// choice, and the annotation of the node (Deps) a third; the last one wins.
	FlushMode     string
	FlushModeFile string
	Version       string // of the program
}

// DefaultOptions returns the options of an ordinary node; NodeID is missing.
func DefaultOptions() Options {
	return Options{
		Endpoint:      "unix:///var/lib/kubelet/plugins/" + Name + "/csi.sock",
		StateDir:      "/var/lib/" + Name,
		KubeletDir:    "/var/lib/kubelet",
		EraseWait:     5 * time.Second,
		SettleTimeout: 2 * time.Minute,
		Version:       "unknown",
	}
}

// AddFlags adds a flag for every option to fs; the present values are the
// defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Endpoint, "endpoint", o.Endpoint, "CSI socket to serve, unix:///PATH")
	fs.StringVar(&o.NodeID, "node-id", o.NodeID, "name of this node in the cluster (required)")
	fs.StringVar(&o.StateDir, "state-dir", o.StateDir, "durable directory for the records of volumes")
	fs.StringVar(&o.KubeletDir, "kubelet-dir", o.KubeletDir, "root directory of the kubelet")
	fs.BoolVar(&o.Register, "register", o.Register, "announce the driver to the kubelet on a socket in KUBELET-DIR/plugins_registry")
	fs.StringVar(&o.KubeletEndpoint, "kubelet-endpoint", o.KubeletEndpoint, "path of the CSI socket as the kubelet sees it, if it differs from --endpoint")
	fs.DurationVar(&o.EraseWait, "erase-wait", o.EraseWait, "how long DeleteVolume waits for the erasure before it asks the caller to retry")
	fs.DurationVar(&o.SettleTimeout, "settle-timeout", o.SettleTimeout, "how long after the start memory that is missing is waited for before it is taken for lost; 0: not at all")
	fs.StringVar(&o.FlushMode, "flush-mode", o.FlushMode, "flush mode of volumes whose class says auto, instead of what this node has measured")
	fs.StringVar(&o.FlushModeFile, "flush-mode-file", o.FlushModeFile, "file with such a flush mode, which is read whenever a volume is staged; it takes precedence over --flush-mode")
}

// labelValue is what Kubernetes accepts as the value of a label, which a
// topology segment becomes.
var labelValue = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// Validate returns all that is wrong with the options.
func (o *Options) Validate() error {
	var errs []error
	if _, err := o.socketPath(); err != nil {
		errs = append(errs, err)
	}
	if !labelValue.MatchString(o.NodeID) {
		errs = append(errs, fmt.Errorf("--node-id %q must be 1 to 63 characters that are valid in a label value: it becomes the value of label %s", o.NodeID, TopologyKey))
	}
	for flag, dir := range map[string]string{"--state-dir": o.StateDir, "--kubelet-dir": o.KubeletDir} {
		if !filepath.IsAbs(dir) {
			errs = append(errs, fmt.Errorf("%s %q must be an absolute path", flag, dir))
		}
	}
	if o.KubeletEndpoint != "" && !filepath.IsAbs(o.KubeletEndpoint) {
		errs = append(errs, fmt.Errorf("--kubelet-endpoint %q must be an absolute path", o.KubeletEndpoint))
	}
	if o.SettleTimeout < 0 {
		errs = append(errs, fmt.Errorf("--settle-timeout %s must not be negative", o.SettleTimeout))
	}
	if _, err := pmem.ParseMode(o.FlushMode); err != nil {
		errs = append(errs, fmt.Errorf("--flush-mode: %w", err))
	}
	if o.FlushModeFile != "" && !filepath.IsAbs(o.FlushModeFile) {
		errs = append(errs, fmt.Errorf("--flush-mode-file %q must be an absolute path", o.FlushModeFile))
	}
	if o.EraseWait < 0 {
		errs = append(errs, fmt.Errorf("--erase-wait %s must not be negative", o.EraseWait))
	}
	return errors.Join(errs...)
}

// socketPath returns the path in Endpoint.
func (o *Options) socketPath() (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(o.Endpoint, "unix:"), "//")
	switch {
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("--endpoint %q must be unix:///ABSOLUTE/PATH", o.Endpoint)
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("--endpoint: socket path %s has %d bytes, the kernel takes at most %d", path, len(path), maxSocketPath)
	}
	return filepath.Clean(path), nil
}
