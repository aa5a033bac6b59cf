//go:build !nvfstools

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

// formatter gives the driver what the tools use.
type formatter struct{}

var _ driver.VolumeFormatter = formatter{}

// Probe implements driver.VolumeFormatter.
func (formatter) Probe(ctx context.Context, path string) (driver.Found, error) {
	found, err := mkfs.Probe(ctx, path)
	if err != nil {
		return driver.Found{}, err
	}
	switch found.Kind {
	case mkfs.Blank:
		return driver.Found{Content: driver.ContentBlank, What: found.What}, nil
	case mkfs.NVFS:
		return foundVolume(found.What, found.Superblock)
	}
	return driver.Found{Content: driver.ContentForeign, What: found.What}, nil
}

func foundVolume(what string, sb *layout.Superblock) (driver.Found, error) {
	f := driver.Found{Content: driver.ContentNVFS, VolumeID: sb.VolumeID, What: what}
	if len(sb.Params) > 0 {
		if err := json.Unmarshal(sb.Params, &f.Params); err != nil {
			return driver.Found{}, fmt.Errorf("parameters in the superblock of volume %q: %w", sb.VolumeID, err)
		}
	}
	return f, nil
}

// Format implements driver.VolumeFormatter.
func (formatter) Format(ctx context.Context, path string, o driver.FormatOptions) error {
	_, err := formatDevice(ctx, path, false, o.Wipe, mkfs.Options{Label: o.Label, VolumeID: o.VolumeID, Params: o.Params})
	var notBlank *notBlankError
	if errors.As(err, &notBlank) {
		return fmt.Errorf("%w; it is left as it is", err)
	}
	return err
}

// Zero implements driver.VolumeFormatter.
func (formatter) Zero(ctx context.Context, path string, from uint64, progress func(to uint64)) error {
	return zeroDevice(ctx, path, from, progress)
}
