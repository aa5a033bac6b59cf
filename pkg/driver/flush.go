package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// FlushModeAnnotation is the annotation of a Node that chooses what the flush
// mode auto means there.
const FlushModeAnnotation = Name + "/flush-mode"

// maxFlushModeFile is more than a flush mode has bytes.
const maxFlushModeFile = 4 << 10

// checkFlush returns nil when namespaces of the region and this CPU can honour
// the flush mode, and otherwise an error that says what they can.
func checkFlush(mode string, region ndctl.Region) error {
	m, err := pmem.ParseMode(mode)
	if err != nil {
		return err
	}
	return pmem.CheckMode(ndctl.BackingOf(region), region.Emulated, m)
}

// nodeFlush is what the node's administrator has chosen for the flush mode auto.
type nodeFlush struct {
	mode   string // auto: what was measured
	source string // where the choice stands, for people
}

// flushChoice returns the node's choice. What a cluster says of one node goes
// before what a file on it says, and that before the flag, which all nodes
// share.
func (d *Driver) flushChoice() (nodeFlush, error) {
	if d.flushAnnotation != nil {
		if mode := strings.TrimSpace(d.flushAnnotation()); mode != "" {
			return parseFlushChoice(mode, "annotation "+FlushModeAnnotation+" of node "+d.options.NodeID)
		}
	}
	if path := d.options.FlushModeFile; path != "" {
		mode, err := readFlushModeFile(path)
		if err != nil {
			return nodeFlush{}, err
		}
		if mode != "" {
			return parseFlushChoice(mode, path)
		}
	}
	return parseFlushChoice(d.options.FlushMode, "--flush-mode")
}

func parseFlushChoice(mode, source string) (nodeFlush, error) {
	m, err := pmem.ParseMode(mode)
	if err != nil {
		return nodeFlush{}, failedPrecondition("%s: %w", source, err)
	}
	return nodeFlush{mode: string(m), source: source}, nil
}

// readFlushModeFile returns "" when there is no such file, or nothing in it.
func readFlushModeFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("flush mode of the node: %w", err)
	}
	if len(data) > maxFlushModeFile {
		return "", failedPrecondition("%s has %d bytes; it should hold the name of a flush mode and nothing else", path, len(data))
	}
	return strings.TrimSpace(string(data)), nil
}

// resolveFlush returns the flush mode that a volume with that parameter gets on
// this node: a class that demands one gets it, auto is the node's choice.
func (d *Driver) resolveFlush(mode string) (nodeFlush, error) {
	if mode != string(pmem.Auto) {
		return nodeFlush{mode: mode, source: "parameter " + KeyFlushMode}, nil
	}
	return d.flushChoice()
}

// checkFlushIn says whether volumes with that parameter can be in the region.
func (d *Driver) checkFlushIn(mode string, region ndctl.Region) error {
	choice, err := d.resolveFlush(mode)
	if err != nil {
		return err
	}
	if err := d.checkFlush(choice.mode, region); err != nil {
		return fmt.Errorf("region %s, %s: %w", region.Name, choice.source, err)
	}
	return nil
}
