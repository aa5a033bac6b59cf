package ndctl

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// DefaultAlign is the alignment of an emulated region whose description gives
// none: what common platforms report for real ones.
const DefaultAlign = 16 << 20

// EmulatedRegion describes a region that is a directory of files. Sizes are
// bytes.
type EmulatedRegion struct {
	Name     string // unique; the last element of Dir when empty
	Dir      string // absolute; made when it does not exist
	NUMANode int    // -1 when unknown
	Size     uint64 // multiple of Align
	Align    uint64 // power of two from 2 MiB on
	// Fixed refuses to extend a namespace that is in use, as the kernel does
	// with real ones.
	Fixed bool
}

// ParseEmulated parses the description of an emulated region as it is given
// on the command line: "dir=/dev/shm/nvfs,size=4Gi[,numa=0][,align=16Mi]
// [,name=region0][,fixed=true]". Sizes take the suffixes Ki, Mi, Gi and Ti. A size that is
// no multiple of the alignment is rounded down.
func ParseEmulated(s string) (EmulatedRegion, error) {
	region := EmulatedRegion{NUMANode: -1, Align: DefaultAlign}
	seen := map[string]bool{}
	for _, field := range strings.Split(s, ",") {
		key, value, found := strings.Cut(field, "=")
		if !found || value == "" || seen[key] {
			return EmulatedRegion{}, fmt.Errorf("%w: emulated region %q: %q is not KEY=VALUE or is given twice", ErrInvalid, s, field)
		}
		seen[key] = true
		if err := region.set(key, value); err != nil {
			return EmulatedRegion{}, fmt.Errorf("%w: emulated region %q: %s: %w", ErrInvalid, s, key, err)
		}
	}
	if !seen["size"] {
		return EmulatedRegion{}, fmt.Errorf("%w: emulated region %q has no size; give it one, as in size=4Gi", ErrInvalid, s)
	}
	region.complete()
	if err := region.validate(); err != nil {
		return EmulatedRegion{}, fmt.Errorf("emulated region %q: %w", s, err)
	}
	return region, nil
}

func (r *EmulatedRegion) set(key, value string) (err error) {
	switch key {
	case "dir":
		r.Dir = filepath.Clean(value)
	case "name":
		r.Name = value
	case "numa":
		r.NUMANode, err = strconv.Atoi(value)
	case "size":
		r.Size, err = parseSize(value)
	case "align":
		if r.Align, err = parseSize(value); r.Align == 0 && err == nil {
			err = errors.New("must be above 0")
		}
	case "fixed":
		r.Fixed, err = strconv.ParseBool(value)
	default:
		err = errors.New("unknown key; known are dir, size, numa, align, name and fixed")
	}
	return err
}

func (r *EmulatedRegion) complete() {
	if r.Name == "" {
		r.Name = filepath.Base(r.Dir)
	}
	if r.Align == 0 {
		r.Align = DefaultAlign
	}
	r.Size = r.Size / r.Align * r.Align
}

func (r *EmulatedRegion) validate() error {
	switch {
	case !filepath.IsAbs(r.Dir):
		return fmt.Errorf("%w: dir=%q must be an absolute path", ErrInvalid, r.Dir)
	case bits.OnesCount64(r.Align) != 1 || r.Align < hugePage:
		return fmt.Errorf("%w: align=%d must be a power of two from %d on", ErrInvalid, r.Align, hugePage)
	case r.Size == 0:
		return fmt.Errorf("%w: size must be at least the alignment, %d bytes", ErrInvalid, r.Align)
	case r.Size > 1<<62:
		return fmt.Errorf("%w: size=%d is more than any file can have", ErrInvalid, r.Size)
	case r.NUMANode < -1:
		return fmt.Errorf("%w: numa=%d", ErrInvalid, r.NUMANode)
	}
	return ValidName(r.Name)
}

func parseSize(s string) (uint64, error) {
	shift := 0
	for suffix, n := range map[string]int{"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40} {
		if strings.HasSuffix(s, suffix) {
			s, shift = strings.TrimSuffix(s, suffix), n
			break
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size in bytes, Ki, Mi, Gi or Ti", s)
	}
	if n > 1<<62>>shift {
		return 0, fmt.Errorf("%s<<%d is too large", s, shift)
	}
	return n << shift, nil
}

// Emulated is a Manager over regions that are directories. Each namespace is
// a sparse file <dir>/<name>.pmem as long as the namespace's usable size; a
// metadata file <dir>/region.json places the namespaces inside the region, so
// that alignment and fragmentation are those of a real region. Several
// processes may manage the same directories.
type Emulated struct {
	regions []*emulatedRegion // sorted by name
	lockDir string
	mu      chan struct{} // held, by one token, around every change
}

var _ Manager = (*Emulated)(nil)

// NewEmulated returns a manager of the given regions. Their directories are
// made when missing and what a crash left half done is repaired. Changes are
// serialised host-wide by a lock file in each region's directory and, if
// lockDir is not empty, by one in lockDir, which other managers may share.
func NewEmulated(regions []EmulatedRegion, lockDir string) (*Emulated, error) {
	m, err := ViewEmulated(regions)
	if err != nil {
		return nil, err
	}
	m.lockDir = lockDir
	if err := m.prepare(); err != nil {
		return nil, err
	}
	return m, nil
}

// ViewEmulated is NewEmulated for whoever only looks: nothing is made and
// nothing repaired unless a change is asked for. A region without a directory
// is an empty one.
func ViewEmulated(regions []EmulatedRegion) (*Emulated, error) {
	m := &Emulated{mu: make(chan struct{}, 1)}
	names, dirs := map[string]bool{}, map[string]bool{}
	for _, desc := range regions {
		desc.Dir = filepath.Clean(desc.Dir)
		desc.complete()
		if err := desc.validate(); err != nil {
			return nil, err
		}
		if names[desc.Name] || dirs[desc.Dir] {
			return nil, fmt.Errorf("%w: two emulated regions share the name %q or the directory %s; give each its own with name= and dir=", ErrInvalid, desc.Name, desc.Dir)
		}
		names[desc.Name], dirs[desc.Dir] = true, true
		m.regions = append(m.regions, &emulatedRegion{EmulatedRegion: desc})
	}
	sort.Slice(m.regions, func(i, j int) bool { return m.regions[i].Name < m.regions[j].Name })
	return m, nil
}

func (m *Emulated) prepare() error {
	return m.change(context.Background(), func() error {
		for _, r := range m.regions {
			if err := r.init(); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeDirs makes the directories again when whoever emptied the memory took
// them as well.
func (m *Emulated) makeDirs() error {
	dirs := []string{}
	for _, r := range m.regions {
		dirs = append(dirs, r.Dir)
	}
	if m.lockDir != "" {
		dirs = append(dirs, m.lockDir)
	}
	for _, dir := range dirs {
		if err := makeDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// Regions implements Manager.
func (m *Emulated) Regions(ctx context.Context) ([]Region, error) {
	var regions []Region
	for _, r := range m.regions {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		regions = append(regions, r.describe())
	}
	return regions, nil
}

// Namespaces implements Manager. Namespaces that are being created or
// destroyed are not listed.
func (m *Emulated) Namespaces(ctx context.Context) ([]Namespace, error) {
	var all []Namespace
	for _, r := range m.regions {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		meta, err := r.load()
		if err != nil {
			return nil, err
		}
		for _, e := range meta.Namespaces {
			if e.State == stateReady || e.State == stateExtending {
				all = append(all, r.inspect(e))
			}
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, nil
}

// Namespace implements Manager.
func (m *Emulated) Namespace(ctx context.Context, name string) (Namespace, error) {
	if err := ctx.Err(); err != nil {
		return Namespace{}, err
	}
	_, ns, err := m.find(name)
	return ns, err
}

// find returns the region and the description of a namespace; the error is
// ErrNotFound or ErrLost.
func (m *Emulated) find(name string) (*emulatedRegion, Namespace, error) {
	for _, r := range m.regions {
		meta, err := r.load()
		if err != nil {
			return nil, Namespace{}, err
		}
		e := meta.lookup(name)
		if e == nil || (e.State != stateReady && e.State != stateExtending) {
			continue
		}
		ns := r.inspect(*e)
		if ns.Lost != "" {
			return r, ns, fmt.Errorf("%w: %s", ErrLost, ns.Lost)
		}
		return r, ns, nil
	}
	return nil, Namespace{}, fmt.Errorf("%w: %q", ErrNotFound, name)
}

// Create implements Manager.
func (m *Emulated) Create(ctx context.Context, req CreateRequest) (Namespace, error) {
	if err := ValidName(req.Name); err != nil {
		return Namespace{}, err
	}
	if req.Size == 0 || UsableSize(req.Mode, 1<<40) == 0 {
		return Namespace{}, fmt.Errorf("%w: size %d, mode %q; want a size above 0 and one of devdax, fsdax and sector", ErrInvalid, req.Size, req.Mode)
	}
	var created Namespace
	err := m.change(ctx, func() error {
		if _, _, err := m.find(req.Name); !errors.Is(err, ErrNotFound) {
			if err == nil || errors.Is(err, ErrLost) {
				return fmt.Errorf("%w: %q", ErrExists, req.Name)
			}
			return err
		}
		r := m.region(req.Region)
		if r == nil {
			return fmt.Errorf("%w: no region %q", ErrInvalid, req.Region)
		}
		if err := r.create(req); err != nil {
			return err
		}
		_, ns, err := m.find(req.Name)
		if err == nil && ns.Size < req.Size {
			err = fmt.Errorf("namespace %q offers %d bytes after its creation, %d were asked for", ns.Name, ns.Size, req.Size)
		}
		created = ns
		return err
	})
	return created, err
}

// Destroy implements Manager.
func (m *Emulated) Destroy(ctx context.Context, name string) error {
	return m.change(ctx, func() error {
		r, _, err := m.find(name)
		if err != nil && !errors.Is(err, ErrLost) {
			return err
		}
		if err := r.destroy(name); err != nil {
			return err
		}
		if _, _, err := m.find(name); !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("namespace %q is still there after it was destroyed: %v", name, err)
		}
		return nil
	})
}

// Extend implements Manager.
func (m *Emulated) Extend(ctx context.Context, name string, size uint64) (Namespace, error) {
	var extended Namespace
	err := m.change(ctx, func() error {
		r, ns, err := m.find(name)
		if err != nil {
			return err
		}
		if ns.Size < size {
			if r.Fixed && ns.InUse {
				return fmt.Errorf("%w: namespace %q of region %s is in use, and grows in place only when it is not", ErrUnsupported, name, r.Name)
			}
			if err := r.extend(name, size); err != nil {
				return err
			}
		}
		_, extended, err = m.find(name)
		if err == nil && extended.Size < size {
			err = fmt.Errorf("namespace %q offers %d bytes after it was extended, %d were asked for", name, extended.Size, size)
		}
		return err
	})
	return extended, err
}

func (m *Emulated) region(name string) *emulatedRegion {
	for _, r := range m.regions {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// change runs f alone on this host, after what an interrupted change left
// has been repaired.
func (m *Emulated) change(ctx context.Context, f func() error) (err error) {
	select {
	case m.mu <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-m.mu }()
	if err := m.makeDirs(); err != nil {
		return err
	}
	unlock, err := lockFiles(ctx, m.lockPaths())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, r := range m.regions {
		if err := r.repair(); err != nil {
			return err
		}
	}
	return f()
}

// lockPaths returns the lock files in the order in which all processes take
// them.
func (m *Emulated) lockPaths() []string {
	var paths []string
	for _, r := range m.regions {
		paths = append(paths, filepath.Join(r.Dir, lockFile))
	}
	sort.Strings(paths)
	if m.lockDir != "" {
		paths = append([]string{filepath.Join(m.lockDir, lockFile)}, paths...)
	}
	return paths
}
