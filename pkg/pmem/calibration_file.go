package pmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/atomicfile"
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
	if c, found := file.of(b.Kind, b.NUMANode); found {
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

// of is the entry of exactly that memory and the CPU of this machine.
func (f calibrationFile) of(kind Kind, node int) (Calibration, bool) {
	c, found := f.Entries[calibrationKey(kind, node)]
	return c, found && c.CPU == CPUModel() && c.Kind == kind
}

// EnsureCalibration returns the calibration that the file holds for memory like
// that of opts.Path, on its NUMA node and with this machine's CPU. Where there is
// none it measures, and saves what it measured; a default that nothing was
// measured for is returned but not saved.
func EnsureCalibration(ctx context.Context, path string, opts CalibrateOptions) (Calibration, error) {
	c, found, err := storedCalibration(path, opts.ScratchOptions)
	if found || err != nil {
		return c, err
	}
	if c, err = Calibrate(ctx, opts); err != nil || !c.Measured {
		return c, err
	}
	return c, SaveCalibration(path, c)
}

// storedCalibration looks for the entry of the memory that would be measured.
func storedCalibration(path string, opts ScratchOptions) (Calibration, bool, error) {
	opts.Size = uint64(os.Getpagesize()) // to look, not to measure
	f, b, _, err := openScratchFile(opts)
	if errors.Is(err, ErrNoScratch) {
		return Calibration{}, false, nil
	}
	if err != nil {
		return Calibration{}, false, err
	}
	if err := f.Close(); err != nil {
		return Calibration{}, false, err
	}
	file, err := readCalibrationFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Calibration{}, false, nil
	}
	if err != nil {
		return Calibration{}, false, fmt.Errorf("%w (remove it to start anew)", err)
	}
	c, found := file.of(b.Kind, nodeOr(b.NUMANode, opts.NUMANode))
	return c, found, nil
}

// nodeOr is the NUMA node that a backing says it is on, else the declared one.
func nodeOr(node int, declared *int) int {
	if node < 0 && declared != nil {
		return *declared
	}
	return node
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
	if err := atomicfile.Write(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("save calibration: %w", err)
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
	b.NUMANode = nodeOr(b.NUMANode, opts.NUMANode)
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
	where := ""
	if c.NUMANode >= 0 {
		where = fmt.Sprintf(" on NUMA node %d", c.NUMANode)
	}
	return c.Choice, fmt.Sprintf("calibrated%s: %s", where, c.Why)
}
