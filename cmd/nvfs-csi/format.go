package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// notBlankError says that a device holds something that formatting would
// destroy.
type notBlankError struct {
	path string
	what string
}

func (e *notBlankError) Error() string {
	return fmt.Sprintf("%s holds %s, which would be destroyed", e.path, e.what)
}

// formatDevice makes a volume on a device or file. Unless wipe is set, it
// refuses whatever is not provably blank. The device stays locked from the
// look at it to the end of the writing.
func formatDevice(ctx context.Context, path string, emulated, wipe bool, opt mkfs.Options) (*layout.Superblock, error) {
	var sb *layout.Superblock
	err := withDevice(path, emulated, func(m *pmem.Mapping) error {
		if err := prepareFormat(ctx, m, wipe, opt); err != nil {
			return err
		}
		var err error
		sb, err = mkfs.Format(m, opt)
		return err
	})
	return sb, err
}

// prepareFormat proves that the device is blank, or wipes the signatures of what
// is on it, which need not be known for that.
func prepareFormat(ctx context.Context, m *pmem.Mapping, wipe bool, opt mkfs.Options) error {
	path := m.Backing().Path
	if wipe {
		if err := errors.Join(ctx.Err(), checkFormat(m.Size(), opt)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return zeroRanges(m, mkfs.SignatureRanges(m.Size()))
	}
	found, err := mkfs.ProbeSpace(ctx, m)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if found.Kind != mkfs.Blank {
		return &notBlankError{path, found.What}
	}
	return nil
}

// checkFormat finds what Format would refuse, before anything is destroyed.
func checkFormat(size uint64, opt mkfs.Options) error {
	const scratch = layout.MinBlocks * layout.BlockSize
	if opt.Size > size {
		return fmt.Errorf("size %d is larger than the device, which has %d bytes", opt.Size, size)
	}
	if opt.Size != 0 {
		size = opt.Size
	}
	if size < scratch {
		return fmt.Errorf("%w: %d bytes; at least %d are needed", mkfs.ErrTooSmall, size, uint64(scratch))
	}
	// Everything else is refused for a small volume just as well.
	memory, err := pmem.NewMemory(scratch)
	if err != nil {
		return err
	}
	opt.Size = 0
	_, err = mkfs.Format(memory, opt)
	return errors.Join(err, memory.Close())
}

// zeroChunk is how much is zeroed before it is made durable and the context
// is looked at.
const zeroChunk = 64 << 20

// zeroDevice overwrites a device from byte from on and tells progress how far
// the zeroes are durable.
func zeroDevice(ctx context.Context, path string, from uint64, progress func(to uint64)) error {
	return withDevice(path, false, func(m *pmem.Mapping) error {
		if m.Backing().Kind == pmem.KindBlock {
			return zeroBlockDevice(ctx, path, from, m.Size(), progress)
		}
		p := m.NewPersister()
		for off := from; off < m.Size(); {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("zero %s: stopped at byte %d: %w", path, off, err)
			}
			n := min(zeroChunk, m.Size()-off)
			p.Zero(off, n)
			if err := p.Fence(); err != nil {
				return fmt.Errorf("zero %s at byte %d: %w", path, off, err)
			}
			off += n
			progress(off)
		}
		return nil
	})
}

func zeroRanges(m *pmem.Mapping, ranges []mkfs.Range) error {
	p := m.NewPersister()
	for _, r := range ranges {
		p.Zero(r.Off, r.Len)
	}
	return p.Fence()
}

// withDevice maps a device for the time of f. Memory that cannot be accessed
// (poison, a backing that was cut off) is an error and not the end of the
// process.
func withDevice(path string, emulated bool, f func(*pmem.Mapping) error) (err error) {
	m, err := pmem.Open(path, pmem.Options{Emulated: emulated})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return guardFaults(path, func() error { return f(m) })
}

func guardFaults(path string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		fault, isFault := v.(interface {
			error
			Addr() uintptr
		})
		if !isFault {
			panic(v)
		}
		err = fmt.Errorf("%s: the medium cannot be accessed: %w", path, fault)
	}()
	return f()
}
