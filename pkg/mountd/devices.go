package mountd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/nvfs-csi/nvfs-csi/pkg/atomicfile"
)

// deviceList are the further devices that a volume has taken into use since it
// was mounted. A successor of the serving process, which is started with what
// was known then, needs them as well; so they are in a file before the volume
// is told of them. A device in it that the volume does not use (yet) is ignored
// by whoever opens it.
type deviceList struct {
	mu    sync.Mutex
	paths []string
}

// deviceFile is that file. It counts for one mount only.
type deviceFile struct {
	Instance string   `json:"instance"`
	Devices  []string `json:"devices"`
}

func devicesPath(stateDir, volumeID string) string {
	return filepath.Join(stateDir, stateName(volumeID)+".devices")
}

// load reads what a predecessor of the same mount has written.
func (l *deviceList) load(stateDir, volumeID, instance string) error {
	data, err := os.ReadFile(devicesPath(stateDir, volumeID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var f deviceFile
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return fmt.Errorf("devices that volume %s was grown onto: %w", volumeID, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if instance != "" && f.Instance == instance {
		l.paths = f.Devices
	}
	return nil
}

// add notes devices that are about to be taken into use. undo takes that back,
// for when they were refused.
func (l *deviceList) add(stateDir, volumeID, instance string, paths []string) (undo func() error, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.paths
	for _, p := range paths {
		if !slices.Contains(l.paths, p) {
			l.paths = append(slices.Clone(l.paths), p)
		}
	}
	if len(l.paths) == len(before) {
		return func() error { return nil }, nil
	}
	undo = func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.paths = slices.DeleteFunc(slices.Clone(l.paths), func(p string) bool {
			return slices.Contains(paths, p) && !slices.Contains(before, p)
		})
		return l.save(stateDir, volumeID, instance)
	}
	return undo, l.save(stateDir, volumeID, instance)
}

// save writes the file, if there can be a successor. l.mu is held.
func (l *deviceList) save(stateDir, volumeID, instance string) error {
	if instance == "" {
		return nil
	}
	data, err := json.Marshal(deviceFile{instance, l.paths})
	if err == nil {
		err = atomicfile.Write(devicesPath(stateDir, volumeID), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note the devices of volume %s: %w", volumeID, err)
	}
	return nil
}

// with returns the list and these, each once.
func (l *deviceList) with(paths []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(paths)
	for _, p := range l.paths {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
