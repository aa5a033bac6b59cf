package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// rehearsalBytes is the size of the volume that a serving process tries itself
// on; hardly any of it is ever touched.
const rehearsalBytes = 16 << 20

// rehearseVolume makes, opens and closes a volume in memory that nobody else
// sees.
func rehearseVolume() (err error) {
	fd, err := unix.MemfdCreate("rehearsal", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "rehearsal")
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(rehearsalBytes); err != nil {
		return err
	}
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := formatRehearsal(path); err != nil {
		return err
	}
	v, err := openVolume(mountd.Spec{Path: path, Flush: string(pmem.Auto), Emulated: true, NUMANode: -1}, mountd.OpenOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	_, err = v.NewWorker()
	return err
}

func formatRehearsal(path string) error {
	m, err := pmem.Open(path, pmem.Options{Emulated: true})
	if err != nil {
		return err
	}
	_, err = mkfs.Format(m, mkfs.Options{})
	return errors.Join(err, m.Close())
}
