//go:build !nvfstools

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// kernelFilesystems makes ext4 and xfs with their own tools.
type kernelFilesystems struct{}

var _ driver.KernelFilesystems = kernelFilesystems{}

// The longest labels, in bytes.
const (
	ext4LabelLength = 16
	xfsLabelLength  = 12
)

// hugePage is what extents should be aligned to, so that a mapping of a file on
// persistent memory can use pages of that size.
const hugePage = 2 << 20

// pageSize is the block size that DAX needs: that of a page.
const pageSize = 4096

// Format implements driver.KernelFilesystems.
func (kernelFilesystems) Format(ctx context.Context, device string, o driver.KernelFormat) error {
	size, err := sizeOfDevice(device)
	if err != nil {
		return err
	}
	name, args, err := mkfsCommand(device, size, o)
	if err != nil {
		return err
	}
	_, err = runTool(ctx, name, args...)
	return err
}

// sizeOfDevice is the size of a block device or file in bytes.
func sizeOfDevice(path string) (size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Seek(0, io.SeekEnd)
}

// xfsSmall is the size in bytes below which an xfs with a stripe unit gets no
// more than four allocation groups: its log, of 64 MiB or more, would not fit
// into one of those that mkfs.xfs makes otherwise.
const xfsSmall = 1 << 30

// mkfsCommand is the command that makes a filesystem. The block size is given:
// for small devices mke2fs would choose one that cannot be mounted with DAX.
func mkfsCommand(device string, size int64, o driver.KernelFormat) (name string, args []string, err error) {
	switch o.Type {
	case driver.FSTypeExt4:
		// The device reads as zero already.
		extended := "nodiscard,lazy_itable_init=1,lazy_journal_init=1"
		if o.DAX {
			extended += fmt.Sprintf(",stride=%d,stripe_width=%d", hugePage/pageSize, hugePage/pageSize)
		}
		args = []string{"-q", "-F", "-m", "0", "-b", "4096", "-E", extended, "-U", o.UUID, "-L", cut(o.Label, ext4LabelLength), device}
		return "mkfs.ext4", args, nil
	case driver.FSTypeXFS:
		// Kernels before 6.0 refuse DAX on an xfs that can share blocks.
		args = []string{"-q", "-f", "-K", "-b", "size=4096", "-m", "reflink=0,uuid=" + o.UUID, "-L", cut(o.Label, xfsLabelLength)}
		if o.DAX {
			geometry := "su=2m,sw=1"
			if size < xfsSmall {
				geometry += ",agcount=4"
			}
			args = append(args, "-d", geometry)
		}
		return "mkfs.xfs", append(args, device), nil
	}
	return "", nil, fmt.Errorf("no such filesystem: %q", o.Type)
}

// cut shortens a label to n bytes, leaving no half characters and no spaces.
func cut(label string, n int) string {
	label = strings.ReplaceAll(label, " ", "_")
	return strings.ToValidUTF8(label[:min(n, len(label))], "")
}

// blkidNothing is the exit code of blkid for a device without any signature. It
// is also that for one it cannot read, which is why formatting never depends on
// it.
const blkidNothing = 2

// Identify implements driver.KernelFilesystems.
func (kernelFilesystems) Identify(ctx context.Context, device string) (driver.KernelFilesystem, error) {
	out, err := runTool(ctx, "blkid", "-p", "-o", "export", "-s", "TYPE", "-s", "UUID", device)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == blkidNothing {
		return driver.KernelFilesystem{}, nil
	}
	if err != nil {
		return driver.KernelFilesystem{}, err
	}
	return parseBlkid(out), nil
}

// parseBlkid reads lines KEY=VALUE.
func parseBlkid(out string) driver.KernelFilesystem {
	var found driver.KernelFilesystem
	for _, line := range strings.Split(out, "\n") {
		switch key, value, _ := strings.Cut(line, "="); key {
		case "TYPE":
			found.Type = value
		case "UUID":
			found.UUID = value
		}
	}
	return found
}

// runTool runs a command until ctx ends; the error holds what it said.
func runTool(ctx context.Context, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w: install e2fsprogs, xfsprogs and util-linux, or use the driver's image, which has them", err)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return stdout.String(), nil
}
