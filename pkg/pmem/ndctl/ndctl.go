// Package ndctl finds and changes persistent-memory regions and namespaces.
// Manager is the one interface: System implements it for the machine's NVDIMMs
// with sysfs and the command ndctl(1), Emulated for directories that stand in
// for regions. Subpackage fake has one for tests.
package ndctl

import (
	"context"
	"errors"
	"fmt"
)

// Mode is the mode of a namespace, with ndctl's names.
type Mode string

// The modes that a namespace can be created in.
const (
	DevDax Mode = "devdax"
	FSDax  Mode = "fsdax"
	Sector Mode = "sector"
)

// Raw is the mode of namespaces that something else made or that a crash left;
// none is created in it.
const Raw Mode = "raw"

// PersistenceDomain is the kernel's name for what survives a power cut.
type PersistenceDomain string

// The values of /sys/bus/nd/devices/regionN/persistence_domain; Volatile is
// ours, for emulated regions in DRAM.
const (
	DomainCPUCache         PersistenceDomain = "cpu_cache"
	DomainMemoryController PersistenceDomain = "memory_controller"
	DomainUnknown          PersistenceDomain = ""
	DomainVolatile         PersistenceDomain = "volatile"
)

// Region is a set of interleaved persistent memory on one NUMA node. Sizes
// are bytes.
type Region struct {
	Name              string            `json:"name"`
	NUMANode          int               `json:"numaNode"` // -1 when unknown
	Size              uint64            `json:"size"`
	Available         uint64            `json:"available"`
	LargestExtent     uint64            `json:"largestExtent"` // largest namespace that can be created now
	Align             uint64            `json:"align"`         // sizes are multiples of this
	PersistenceDomain PersistenceDomain `json:"persistenceDomain"`
	InterleaveWidth   int               `json:"interleaveWidth,omitempty"` // NVDIMMs that it is spread over
	Labels            bool              `json:"labels"`                    // it can be divided into namespaces
	ReadOnly          bool              `json:"readOnly,omitempty"`
	BadBytes          uint64            `json:"badBytes,omitempty"` // known to be unreadable (poison)
	Emulated          bool              `json:"emulated"`
	Unusable          string            `json:"unusable,omitempty"` // why no namespace can be made, with the remedy; "" if usable
}

// Namespace is a carved part of a region. Name is the identity: numbers such
// as namespace0.1 change over a reboot. A namespace without a name goes by its
// UUID; one that has neither (it fills a region without labels) is listed only.
type Namespace struct {
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	Region   string `json:"region"`
	NUMANode int    `json:"numaNode"`
	Mode     Mode   `json:"mode"`
	Size     uint64 `json:"size"`   // usable bytes
	Raw      uint64 `json:"raw"`    // bytes taken from the region
	Device   string `json:"device"` // path to map or mount
	InUse    bool   `json:"inUse"`
	BadBytes uint64 `json:"badBytes,omitempty"` // known to be unreadable (poison)
	Emulated bool   `json:"emulated"`
	Lost     string `json:"lost,omitempty"` // what is gone of its backing; "" when it is there
}

// CreateRequest asks for a namespace. Size is the least usable size; it is
// rounded up to the region's alignment.
type CreateRequest struct {
	Name   string
	Region string
	Mode   Mode
	Size   uint64
}

// Manager lists and changes namespaces. All methods are safe for concurrent
// use; changes are serialised host-wide. Every method honours ctx.
type Manager interface {
	// Regions returns all regions, sorted by name.
	Regions(ctx context.Context) ([]Region, error)
	// Namespaces returns all namespaces, sorted by name.
	Namespaces(ctx context.Context) ([]Namespace, error)
	// Namespace returns the namespace of that name, or ErrNotFound. When it
	// is known but its backing is gone, the error is ErrLost and Lost in the
	// returned namespace says what is missing.
	Namespace(ctx context.Context, name string) (Namespace, error)
	// Create makes a namespace and reads it back. Asked again with a name
	// that exists it returns ErrExists. Its content is whatever the memory
	// held before: the caller wipes.
	Create(ctx context.Context, req CreateRequest) (Namespace, error)
	// Destroy removes a namespace that is not in use (ErrBusy). A name that
	// does not exist is ErrNotFound. What is left of a lost namespace is
	// removed as well.
	Destroy(ctx context.Context, name string) error
	// Extend grows a namespace in place to at least size bytes; ErrUnsupported
	// where the kernel cannot, NoSpaceError when what follows it is taken.
	Extend(ctx context.Context, name string, size uint64) (Namespace, error)
}

// The errors of a Manager, to be tested with errors.Is.
var (
	ErrNotFound    = errors.New("namespace not found")
	ErrExists      = errors.New("namespace exists already")
	ErrBusy        = errors.New("namespace is in use")
	ErrUnsupported = errors.New("not supported by this kind of region")
	ErrInvalid     = errors.New("invalid request")
	ErrLost        = errors.New("the memory behind the namespace is lost")
)

// NoSpaceError says that no extent is large enough.
type NoSpaceError struct {
	Region  string
	Want    uint64
	Largest uint64
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("region %s has no free extent of %d bytes; the largest is %d", e.Region, e.Want, e.Largest)
}
