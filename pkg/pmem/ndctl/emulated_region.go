package ndctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/google/uuid"

	"github.com/nvfs-csi/nvfs-csi/pkg/atomicfile"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/internal/extent"
)

const (
	metadataFile    = "region.json"
	metadataVersion = 1
	backingSuffix   = ".pmem"
)

// entryState is how far a change of a namespace has come. The metadata always
// changes before the file does, so that after a crash it says what to repair.
type entryState string

const (
	stateCreating   entryState = "creating"   // repair: forget it
	stateReady      entryState = "ready"      //
	stateExtending  entryState = "extending"  // repair: give the file its new size
	stateDestroying entryState = "destroying" // repair: forget it
)

type regionMetadata struct {
	Version    int              `json:"version"`
	Name       string           `json:"name"`
	Size       uint64           `json:"size"`
	Align      uint64           `json:"align"`
	Namespaces []namespaceEntry `json:"namespaces"`
}

type namespaceEntry struct {
	Name   string     `json:"name"`
	UUID   string     `json:"uuid"`
	Mode   Mode       `json:"mode"`
	Offset uint64     `json:"offset"`
	Raw    uint64     `json:"raw"`
	Size   uint64     `json:"size"`
	State  entryState `json:"state"`
}

func (md *regionMetadata) lookup(name string) *namespaceEntry {
	for i := range md.Namespaces {
		if md.Namespaces[i].Name == name {
			return &md.Namespaces[i]
		}
	}
	return nil
}

func (md *regionMetadata) forget(name string) {
	kept := md.Namespaces[:0]
	for _, e := range md.Namespaces {
		if e.Name != name {
			kept = append(kept, e)
		}
	}
	md.Namespaces = kept
}

func (md *regionMetadata) used() []extent.Extent {
	var used []extent.Extent
	for _, e := range md.Namespaces {
		used = append(used, extent.Extent{Offset: e.Offset, Length: e.Raw})
	}
	return used
}

func (md *regionMetadata) holes() []extent.Extent {
	return extent.Holes(md.Size, md.Align, md.used())
}

// emulatedRegion is one directory. Its methods that change something expect
// the locks of Emulated.change to be held.
type emulatedRegion struct {
	EmulatedRegion
}

func (r *emulatedRegion) backing(name string) string {
	return filepath.Join(r.Dir, name+backingSuffix)
}

// init writes the metadata of a new region, and of an existing one whose
// description has changed in a way that keeps every namespace where it is.
func (r *emulatedRegion) init() error {
	path := filepath.Join(r.Dir, metadataFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return r.save(&regionMetadata{Name: r.Name, Size: r.Size, Align: r.Align})
	} else if err != nil {
		return err
	}
	md, err := r.read()
	if err != nil {
		return err
	}
	if md.Name == r.Name && md.Size == r.Size && md.Align == r.Align {
		return nil
	}
	for _, e := range md.Namespaces {
		if md.Align != r.Align || e.Offset+e.Raw > r.Size {
			return fmt.Errorf("%w: %s is a region of %d bytes aligned to %d with namespaces in it; it cannot become one of %d bytes aligned to %d: keep the old values or destroy its namespaces first",
				ErrInvalid, r.Dir, md.Size, md.Align, r.Size, r.Align)
		}
	}
	md.Name, md.Size, md.Align = r.Name, r.Size, r.Align
	return r.save(md)
}

// load returns the metadata. A directory without it was emptied behind our
// back (a tmpfs after a reboot): the region is then as good as new, and the
// namespaces that were in it are not found any more.
func (r *emulatedRegion) load() (*regionMetadata, error) {
	md, err := r.read()
	if errors.Is(err, fs.ErrNotExist) {
		return &regionMetadata{Name: r.Name, Size: r.Size, Align: r.Align}, nil
	}
	return md, err
}

func (r *emulatedRegion) read() (*regionMetadata, error) {
	path := filepath.Join(r.Dir, metadataFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("region %s: %w", r.Name, err)
	}
	var md regionMetadata
	if err := json.Unmarshal(data, &md); err != nil {
		return nil, fmt.Errorf("region %s: %s is damaged, nothing is changed until it is repaired or removed by hand: %w", r.Name, path, err)
	}
	if md.Version != metadataVersion {
		return nil, fmt.Errorf("region %s: %s has version %d, this program knows %d", r.Name, path, md.Version, metadataVersion)
	}
	if md.Align == 0 || md.Align&(md.Align-1) != 0 {
		return nil, fmt.Errorf("region %s: %s is damaged: alignment %d", r.Name, path, md.Align)
	}
	for _, e := range md.Namespaces {
		if err := ValidName(e.Name); err != nil {
			return nil, fmt.Errorf("region %s: %s is damaged: %w", r.Name, path, err)
		}
	}
	return &md, nil
}

func (r *emulatedRegion) save(md *regionMetadata) error {
	md.Version = metadataVersion
	sort.Slice(md.Namespaces, func(i, j int) bool { return md.Namespaces[i].Offset < md.Namespaces[j].Offset })
	data, err := json.MarshalIndent(md, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(r.Dir, metadataFile), append(data, '\n'), 0o600)
}

// setState changes the state of one namespace and saves.
func (r *emulatedRegion) setState(md *regionMetadata, name string, state entryState) error {
	md.lookup(name).State = state
	return r.save(md)
}

// repair completes or undoes what a crash interrupted.
func (r *emulatedRegion) repair() error {
	md, err := r.load()
	if err != nil {
		return err
	}
	for _, e := range append([]namespaceEntry(nil), md.Namespaces...) {
		switch e.State {
		case stateCreating, stateDestroying:
			err = r.remove(md, e.Name)
		case stateExtending:
			err = r.finishExtend(md, e)
		}
		if err != nil {
			return fmt.Errorf("repair of namespace %q, which was left %s: %w", e.Name, e.State, err)
		}
	}
	return nil
}

// describe never fails: a region that cannot be read is reported unusable.
func (r *emulatedRegion) describe() Region {
	region := Region{Name: r.Name, NUMANode: r.NUMANode, Size: r.Size, Align: r.Align,
		PersistenceDomain: DomainVolatile, Labels: true, Emulated: true}
	md, err := r.load()
	if err != nil {
		region.Unusable = err.Error()
		return region
	}
	holes := md.holes()
	region.Available, region.LargestExtent = extent.Total(holes), extent.Largest(holes)
	return region
}

// inspect compares an entry with its file.
func (r *emulatedRegion) inspect(e namespaceEntry) Namespace {
	ns := Namespace{Name: e.Name, UUID: e.UUID, Region: r.Name, NUMANode: r.NUMANode, Mode: e.Mode,
		Size: e.Size, Raw: e.Raw, Device: r.backing(e.Name), Emulated: true}
	info, err := os.Stat(ns.Device)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		ns.Lost = fmt.Sprintf("%s, which held the data of namespace %q, is gone", ns.Device, e.Name)
	case err != nil:
		ns.Lost = fmt.Sprintf("the data of namespace %q cannot be reached: %v", e.Name, err)
	case !info.Mode().IsRegular():
		ns.Lost = fmt.Sprintf("%s, which held the data of namespace %q, is no file any more but %s", ns.Device, e.Name, info.Mode().Type())
	case e.State == stateReady && info.Size() < int64(e.Size):
		ns.Lost = fmt.Sprintf("%s was cut from %d to %d bytes", ns.Device, e.Size, info.Size())
	}
	if ns.Lost != "" {
		return ns
	}
	if e.State == stateExtending {
		ns.Size = min(e.Size, uint64(info.Size()))
	}
	ns.InUse, err = inUse(ns.Device)
	if err != nil {
		ns.InUse = true // not known to be free
	}
	return ns
}

func (r *emulatedRegion) create(req CreateRequest) error {
	md, err := r.load()
	if err != nil {
		return err
	}
	holes := md.holes()
	noSpace := &NoSpaceError{Region: r.Name, Want: req.Size, Largest: UsableSize(req.Mode, extent.Largest(holes))}
	raw, ok := RawSize(req.Mode, req.Size, md.Align)
	if !ok {
		return noSpace
	}
	offset, ok := extent.BestFit(holes, raw)
	if !ok {
		return noSpace
	}
	entry := namespaceEntry{Name: req.Name, UUID: uuid.NewString(), Mode: req.Mode, Offset: offset,
		Raw: raw, Size: UsableSize(req.Mode, raw), State: stateCreating}
	path := r.backing(req.Name)
	// An entry that is being created owns the file of its name and removes it
	// when it is undone, so the file must not be there before.
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s belongs to no namespace of the region; look at it and remove it by hand (%v)", ErrExists, path, err)
	}
	md.Namespaces = append(md.Namespaces, entry)
	if err := r.save(md); err != nil {
		return err
	}
	if err := makeBacking(path, entry.Size); err != nil {
		return errors.Join(fmt.Errorf("create namespace %q: %w", req.Name, err), r.remove(md, req.Name))
	}
	return r.setState(md, req.Name, stateReady)
}

func (r *emulatedRegion) destroy(name string) error {
	md, err := r.load()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(r.backing(name), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return r.remove(md, name)
	}
	if err != nil {
		return err
	}
	defer f.Close() // keeps servers out until the file is gone
	locked, err := tryLock(f)
	if err != nil {
		return fmt.Errorf("destroy of namespace %q: %w", name, err)
	}
	looped, err := loopMounted(f.Name())
	if err != nil {
		return fmt.Errorf("destroy of namespace %q: %w", name, err)
	}
	if !locked || looped {
		return fmt.Errorf("%w: %q (%s); unmount it first", ErrBusy, name, f.Name())
	}
	if err := r.setState(md, name, stateDestroying); err != nil {
		return err
	}
	return r.remove(md, name)
}

// remove removes file and entry, in this order: a file without an entry would
// be nobody's.
func (r *emulatedRegion) remove(md *regionMetadata, name string) error {
	if err := atomicfile.Remove(r.backing(name)); err != nil {
		return err
	}
	md.forget(name)
	return r.save(md)
}

func (r *emulatedRegion) extend(name string, size uint64) error {
	md, err := r.load()
	if err != nil {
		return err
	}
	e := md.lookup(name)
	room := e.Raw
	for _, hole := range md.holes() {
		if hole.Offset == e.Offset+e.Raw {
			room += hole.Length
		}
	}
	raw, ok := RawSize(e.Mode, size, md.Align)
	if !ok || raw > room {
		return &NoSpaceError{Region: r.Name, Want: size, Largest: UsableSize(e.Mode, room)}
	}
	e.Raw, e.Size, e.State = raw, UsableSize(e.Mode, raw), stateExtending
	if err := r.save(md); err != nil {
		return err
	}
	return r.finishExtend(md, *md.lookup(name))
}

func (r *emulatedRegion) finishExtend(md *regionMetadata, e namespaceEntry) error {
	if err := os.Truncate(r.backing(e.Name), int64(e.Size)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return r.setState(md, e.Name, stateReady)
}

func makeBacking(path string, size uint64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(f.Truncate(int64(size)), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

func makeDir(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(dir))
}
