package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// regionFlags are the flags of the commands that deal with regions.
type regionFlags struct {
	emulate []string
}

func (r *regionFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&r.emulate, "emulate", nil,
		"instead of the machine's regions, use a directory as an emulated one, such as dir=/dev/shm/nvfs,numa=0,size=4Gi; repeat for several")
}

// defaultLockDir is where the driver keeps its state, and with it the lock
// that serialises changes of regions.
const defaultLockDir = "/var/lib/csi.nvfs.dev"

// repairTimeout bounds how long a start waits for another process that changes
// namespaces.
const repairTimeout = 2 * time.Minute

// manager returns the manager of the regions that are described, or, when none
// is, of the machine's. For emulated regions lockDir may be empty.
func (r *regionFlags) manager(lockDir string) (ndctl.Manager, error) {
	regions, err := r.described()
	if err != nil {
		return nil, err
	}
	if len(regions) > 0 {
		return ndctl.NewEmulated(regions, lockDir)
	}
	ctx, cancel := context.WithTimeout(context.Background(), repairTimeout)
	defer cancel()
	return ndctl.NewSystem(ctx, lockDir)
}

// view is manager for commands that change nothing in a region, and so must
// not make its directory either.
func (r *regionFlags) view() (ndctl.Manager, error) {
	regions, err := r.described()
	if err != nil {
		return nil, err
	}
	if len(regions) > 0 {
		return ndctl.ViewEmulated(regions)
	}
	return ndctl.ViewSystem(), nil
}

func (r *regionFlags) described() ([]ndctl.EmulatedRegion, error) {
	var regions []ndctl.EmulatedRegion
	for _, text := range r.emulate {
		region, err := ndctl.ParseEmulated(text)
		if err != nil {
			return nil, fmt.Errorf("--emulate: %w", err)
		}
		regions = append(regions, region)
	}
	return regions, nil
}

// backing is what a PATH argument stands for.
type backing struct {
	path     string // absolute
	emulated bool   // a namespace of an emulated region
	numaNode int    // of the namespace; -1 when unknown
}

// resolve finds what a PATH argument means: a device, a file, or the name of
// a namespace. A name without a slash is a namespace if there is one of that
// name, else a file in the working directory.
func (r *regionFlags) resolve(ctx context.Context, arg string) (backing, error) {
	if !strings.Contains(arg, "/") {
		ns, found, err := r.namespace(ctx, arg)
		if err != nil {
			return backing{}, err
		}
		if found {
			return backing{path: ns.Device, emulated: ns.Emulated, numaNode: ns.NUMANode}, nil
		}
		if _, err := os.Stat(arg); errors.Is(err, fs.ErrNotExist) {
			return backing{}, fmt.Errorf("%q is neither a file here nor the name of a namespace; "+
				"nvfs-csi discover lists namespaces, with --emulate those of emulated regions: %w", arg, fs.ErrNotExist)
		}
	}
	abs, err := filepath.Abs(arg)
	if err != nil {
		return backing{}, err
	}
	return backing{path: abs, numaNode: -1}, nil
}

func (r *regionFlags) namespace(ctx context.Context, name string) (ndctl.Namespace, bool, error) {
	m, err := r.view()
	if err != nil {
		return ndctl.Namespace{}, false, err
	}
	ns, err := m.Namespace(ctx, name)
	if errors.Is(err, ndctl.ErrNotFound) || errors.Is(err, ndctl.ErrInvalid) {
		return ndctl.Namespace{}, false, nil
	}
	return ns, err == nil, err
}
