package driver

import "context"

// Content is what a namespace holds.
type Content string

// The three answers of a probe. A read error is none of them.
const (
	ContentBlank   Content = "blank"   // provably empty: formatting destroys nothing
	ContentNVFS    Content = "nvfs"    // a valid NVFS superblock
	ContentForeign Content = "foreign" // anything else
)

// Found is the answer of a probe.
type Found struct {
	Content  Content
	VolumeID string            // of an NVFS volume
	Params   map[string]string // of an NVFS volume, as they were given to Format
	What     string            // what was recognised, for people
}

// FormatOptions are for VolumeFormatter.Format.
type FormatOptions struct {
	VolumeID string
	Label    string            // at most 63 bytes
	Params   map[string]string // stored in the superblock
	// Wipe formats whatever is there. Without it, anything but a blank device
	// is refused.
	Wipe bool
}

// VolumeFormatter probes, formats and erases the device of a namespace. It is
// safe for concurrent use on different devices; every method honours ctx.
type VolumeFormatter interface {
	// Probe says what the device holds. It changes nothing and works while
	// the device is being served.
	Probe(ctx context.Context, path string) (Found, error)
	// Format makes an NVFS volume of the whole device. When it returns, the
	// volume is durable.
	Format(ctx context.Context, path string, options FormatOptions) error
	// Zero overwrites the device with zeroes from byte from to its end and
	// calls progress, from time to time and at the end, with the offset up to
	// which that is durable. It refuses a device that is being served.
	Zero(ctx context.Context, path string, from uint64, progress func(to uint64)) error
}
