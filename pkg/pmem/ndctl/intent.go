package ndctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/atomicfile"
)

// A change of a namespace is many steps of ndctl and the kernel, any of which
// may be the last. An intent is a file that is there from before the first step
// until after the last, so that whoever changes something next can tell what
// was left half done and finish it. Without it a namespace that was made to
// half and one with data that the kernel cannot enable look the same.
type intent struct {
	Action action `json:"action"`
	Name   string `json:"name"`
	UUID   string `json:"uuid"` // of the namespace's label
	Mode   Mode   `json:"mode"`
	Region string `json:"region,omitempty"`
	Least  uint64 `json:"least,omitempty"` // usable bytes asked for
}

type action string

const (
	creating   action = "create"
	destroying action = "destroy"
)

// intents is the directory of the intents; "" keeps none.
type intents string

const intentSuffix = ".json"

func (d intents) path(name string) string { return filepath.Join(string(d), name+intentSuffix) }

func (d intents) save(i intent) error {
	data, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("intents: %w", err)
	}
	if err := atomicfile.Write(d.path(i.Name), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("intent of namespace %s: %w", i.Name, err)
	}
	return nil
}

func (d intents) remove(name string) error {
	if err := atomicfile.Remove(d.path(name)); err != nil {
		return fmt.Errorf("intent of namespace %s: %w", name, err)
	}
	return nil
}

// list returns all intents. One that cannot be understood is an error: what it
// is about must not be taken for finished.
func (d intents) list() ([]intent, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) || d == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("intents: %w", err)
	}
	var all []intent
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), intentSuffix) || atomicfile.IsTemp(e.Name()) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(string(d), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // finished meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("intents: %w", err)
		}
		i, err := parseIntent(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: see nvfs-csi discover for what became of the namespace, then remove the file", d.path(strings.TrimSuffix(e.Name(), intentSuffix)), err)
		}
		all = append(all, i)
	}
	return all, nil
}

func parseIntent(data []byte) (intent, error) {
	var i intent
	if err := json.Unmarshal(data, &i); err != nil {
		return i, err
	}
	if (i.Action != creating && i.Action != destroying) || ValidName(i.Name) != nil || i.UUID == "" {
		return i, fmt.Errorf("%w: intent %+v", ErrInvalid, i)
	}
	return i, nil
}

// concerns reports whether the intent is about that namespace.
func (i intent) concerns(ns Namespace) bool { return i.UUID == ns.UUID }

// pending returns ErrBusy when an interrupted change of that name waits to be
// finished: its intent must not be replaced.
func (d intents) pending(name string) error {
	all, err := d.list()
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.Name == name {
			return fmt.Errorf("%w: an interrupted change (%s) of namespace %s waits for region %s; if its memory was removed for good, remove %s", ErrBusy, i.Action, name, i.Region, d.path(name))
		}
	}
	return nil
}

// finished reports whether the namespace is all that the intent wanted.
func (i intent) finished(ns Namespace) bool {
	return i.Action == creating && ns.Name == i.Name && ns.Mode == i.Mode && ns.Size >= i.Least && ns.Lost == ""
}
