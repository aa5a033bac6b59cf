package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/atomicfile"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// phase is how far the life of a volume has come. It is durable before the
// device is touched, so a crash leaves at most one step to repeat or undo.
type phase string

const (
	// phaseCreating: a namespace may or may not exist and holds nothing that
	// anybody was promised. A retry continues; anything else undoes it.
	phaseCreating phase = "creating"
	// phaseReady: the volume was handed out. It is never formatted again.
	phaseReady phase = "ready"
	// phaseDeleting: the volume is not in use and its content is given up.
	phaseDeleting phase = "deleting"
)

const (
	recordVersion = 1
	recordSuffix  = ".json"
)

// record is what the driver knows about one volume. Sizes are bytes.
type record struct {
	Version       int               `json:"version"`
	ID            string            `json:"id"`
	Name          string            `json:"name"` // as given to CreateVolume; "" when recovered from the device
	Label         string            `json:"label,omitempty"`
	Phase         phase             `json:"phase"`
	Params        map[string]string `json:"params"`
	Namespace     string            `json:"namespace"`               // the ID, unless provision=namespace
	NamespaceUUID string            `json:"namespaceUUID,omitempty"` // once it is known to exist
	Region        string            `json:"region"`
	NUMANode      *int              `json:"numaNode,omitempty"` // of the region, once the namespace exists
	Requested     uint64            `json:"requested"`          // least size asked for
	Capacity      uint64            `json:"capacity"`           // usable size
	Further       []further         `json:"further,omitempty"`  // namespaces that it has grown onto
	Erased        uint64            `json:"erased,omitempty"`   // bytes, of the namespace that is erased last
	Staged        *staged           `json:"staged,omitempty"`
	Published     []published       `json:"published,omitempty"`
}

// staged says where the volume is, or is about to be, mounted.
type staged struct {
	Path     string   `json:"path"`
	ReadOnly bool     `json:"readOnly,omitempty"`
	Flags    []string `json:"flags,omitempty"`
}

// published says where the volume is, or is about to be, bind mounted.
type published struct {
	Path     string        `json:"path"`
	ReadOnly bool          `json:"readOnly,omitempty"`
	Single   bool          `json:"single,omitempty"` // no second target is allowed
	Pod      *podReference `json:"pod,omitempty"`    // whose directory it is
	// Done is set before the caller is told. A mount without it was never
	// given to a pod.
	Done bool `json:"done,omitempty"`
}

// params returns the parsed parameters.
func (r *record) params() (Params, error) { return ParseParams(OriginState, r.Params) }

// owns reports whether the namespace is the one this record is about, and not
// another of the same name.
func (r *record) owns(ns ndctl.Namespace) bool {
	if r.NamespaceUUID != "" {
		return r.NamespaceUUID == ns.UUID
	}
	return r.Namespace == ns.Name && r.Region == ns.Region && ns.Size >= r.Requested
}

func (r *record) target(path string) *published {
	for i := range r.Published {
		if r.Published[i].Path == path {
			return &r.Published[i]
		}
	}
	return nil
}

func (r *record) forgetTarget(path string) bool {
	before := len(r.Published)
	r.Published = slices.DeleteFunc(r.Published, func(p published) bool { return p.Path == path })
	return len(r.Published) != before
}

// records keeps one file per volume. Nothing is cached: the files are the
// state, and a restart is nothing special. Two writers of one volume are kept
// apart by inflight and the phase.
type records struct {
	dir string
}

var errNoRecord = errors.New("no record")

func openRecords(stateDir string) (*records, error) {
	dir := filepath.Join(stateDir, "volumes")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return &records{dir: dir}, nil
}

func (s *records) path(id string) string { return filepath.Join(s.dir, id+recordSuffix) }

// load returns the record of a volume or errNoRecord. A record that cannot be
// understood is an error, never "there is none".
func (s *records) load(id string) (*record, error) {
	data, err := os.ReadFile(s.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoRecord
	}
	if err != nil {
		return nil, fmt.Errorf("record of volume %s: %w", id, err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("record of volume %s: %s is damaged; repair it, or move it away to let the driver read the volume itself: %w", id, s.path(id), err)
	}
	return &r, r.validate(id)
}

func (r *record) validate(id string) error {
	if r.Version != recordVersion {
		return fmt.Errorf("record of volume %s has version %d, this driver knows %d; use the driver that wrote it", id, r.Version, recordVersion)
	}
	if r.ID != id || ndctl.ValidName(r.Namespace) != nil || !slices.Contains([]phase{phaseCreating, phaseReady, phaseDeleting}, r.Phase) {
		return fmt.Errorf("record of volume %s is damaged: id %q, namespace %q, phase %q", id, r.ID, r.Namespace, r.Phase)
	}
	for _, f := range r.Further {
		if ndctl.ValidName(f.Namespace) != nil {
			return fmt.Errorf("record of volume %s is damaged: further namespace %q", id, f.Namespace)
		}
	}
	if _, err := r.params(); err != nil {
		return fmt.Errorf("record of volume %s is damaged: %w", id, err)
	}
	return nil
}

func (s *records) save(r *record) error {
	r.Version = recordVersion
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(s.path(r.ID), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("record of volume %s: %w", r.ID, err)
	}
	return nil
}

// remove removes a record; one that is not there is not an error.
func (s *records) remove(id string) error {
	if err := atomicfile.Remove(s.path(id)); err != nil {
		return fmt.Errorf("record of volume %s: %w", id, err)
	}
	return nil
}

// list returns all records, sorted by ID, and an error for those that could
// not be read; the readable ones are returned in any case.
func (s *records) list() ([]*record, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	var all []*record
	var errs []error
	for _, e := range entries {
		id, isRecord := strings.CutSuffix(e.Name(), recordSuffix)
		if !isRecord {
			continue
		}
		r, err := s.load(id)
		switch {
		case err == nil:
			all = append(all, r)
		case !errors.Is(err, errNoRecord): // removed meanwhile
			errs = append(errs, err)
		}
	}
	slices.SortFunc(all, func(a, b *record) int { return strings.Compare(a.ID, b.ID) })
	return all, errors.Join(errs...)
}
