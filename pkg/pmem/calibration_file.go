package pmem

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DefaultCalibrationFile is where a node keeps its calibrations.
const DefaultCalibrationFile = "/var/lib/nvfs-csi/calibration.json"

// calibrationFile is the content of the file.
type calibrationFile struct {
	Version int                    `json:"version"`
	Entries map[string]Calibration `json:"entries"` // by kind of backing and NUMA node
}

const calibrationVersion = 1

func calibrationKey(kind Kind, node int) string {
	if node < 0 {
		return string(kind)
	}
	return fmt.Sprintf("%s/node%d", kind, node)
}

// LoadCalibration returns the calibration in the file (empty name: the default
// file) for memory like b and the CPU of this machine. One of the same NUMA node
// is preferred to one of another. The error is fs.ErrNotExist when there is
// none.
func LoadCalibration(path string, b Backing) (Calibration, error) {
	file, err := readCalibrationFile(path)
	if err != nil {
		return Calibration{}, err
	}
	cpu := CPUModel()
	if c, ok := file.Entries[calibrationKey(b.Kind, b.NUMANode)]; ok && c.CPU == cpu && c.Kind == b.Kind {
		return c, nil
	}
	var found Calibration
	for _, c := range file.Entries {
		if c.Kind == b.Kind && c.CPU == cpu && (found.Kind == "" || c.NUMANode < found.NUMANode) {
			found = c
		}
	}
	if found.Kind == "" {
		return Calibration{}, fmt.Errorf("no calibration of %s for %s in %s: %w", b.Kind, cpu, calibrationPath(path), fs.ErrNotExist)
	}
	return found, nil
}

// SaveCalibration puts c into the file, in place of an older one of the same
// kind of backing and NUMA node. The file is replaced atomically and durably;
// concurrent savers wait for each other.
func SaveCalibration(path string, c Calibration) error {
	path = calibrationPath(path)
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save calibration: %w", err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("save calibration: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("save calibration: lock %s: %w", dir, err)
	}
	file, err := readCalibrationFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		file = calibrationFile{Version: calibrationVersion, Entries: map[string]Calibration{}}
	} else if err != nil {
		return fmt.Errorf("%w (remove it to start anew)", err)
	}
	file.Entries[calibrationKey(c.Kind, c.NUMANode)] = c
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return fmt.Errorf("save calibration: %w", err)
	}
	return replaceFile(path, lock, append(text, '\n'))
}

// replaceFile writes a new file and renames it over path; dir is the open
// directory.
func replaceFile(path string, dir *os.File, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("save calibration: %w", err)
	}
	defer os.Remove(f.Name()) // there only after an error
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("save calibration: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("save calibration: %w", err)
	}
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("save calibration: sync directory: %w", err)
	}
	return nil
}

func calibrationPath(path string) string {
	if path == "" {
		return DefaultCalibrationFile
	}
	return path
}

func readCalibrationFile(path string) (calibrationFile, error) {
	path = calibrationPath(path)
	text, err := os.ReadFile(path)
	if err != nil {
		return calibrationFile{}, fmt.Errorf("read calibration: %w", err)
	}
	var file calibrationFile
	if err := json.Unmarshal(text, &file); err != nil {
		return calibrationFile{}, fmt.Errorf("calibration file %s is damaged: %w", path, err)
	}
	if file.Version != calibrationVersion {
		return calibrationFile{}, fmt.Errorf("calibration file %s has version %d, not %d", path, file.Version, calibrationVersion)
	}
	if file.Entries == nil {
		file.Entries = map[string]Calibration{}
	}
	return file, nil
}

// autoStrategy is the strategy that Auto stands for on b, and why.
func autoStrategy(b Backing, opts Options) (Strategy, string) {
	if c := opts.Calibration; c != nil {
		return c.Choice, c.Why
	}
	fallback, why := DefaultStrategy(b, opts.Emulated)
	if fallback.Small == MSync {
		return fallback, why // there is nothing to choose
	}
	c, err := LoadCalibration(opts.CalibrationFile, b)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fallback, why
	case err != nil:
		return fallback, fmt.Sprintf("%s (%v)", why, err)
	}
	for _, m := range []Mode{c.Choice.Small, c.Choice.Bulk} {
		if err := CheckMode(b, opts.Emulated, m); err != nil {
			return fallback, fmt.Sprintf("%s (the calibrated choice is not possible here: %v)", why, err)
		}
	}
	return c.Choice, "calibrated: " + c.Why
}
