// Package atomicfile replaces and removes small files so that after a crash
// the old or the new content is there in full, never a mixture or nothing.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// TempSuffix ends the name of a file that is being written. Whoever lists a
// directory of atomically written files skips such names; the next Write of
// the same file overwrites it.
const TempSuffix = ".tmp"

// IsTemp reports whether name is that of an unfinished file.
func IsTemp(name string) bool { return strings.HasSuffix(name, TempSuffix) }

// Write replaces path by data, durably. Two writers of one path have to be
// kept apart by the caller.
func Write(path string, data []byte, mode fs.FileMode) error {
	temp := path + TempSuffix
	if err := writeSynced(temp, data, mode); err != nil {
		return errors.Join(err, removeIfThere(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, removeIfThere(temp))
	}
	return SyncDir(filepath.Dir(path))
}

// Remove removes path, durably. A file that is not there is not an error.
func Remove(path string) error {
	if err := removeIfThere(path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the creation, renaming and removal of dir's entries durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync of directory %s: %w", dir, err), d.Close())
	}
	return d.Close()
}

// writeSynced truncates rather than insists on a new file: what a crash left
// behind must not block the file for ever.
func writeSynced(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
