package ndctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// loopBackings is the pattern of the files in which the kernel names the
// backing of each loop device that is set up.
const loopBackings = "/sys/block/loop*/loop/backing_file"

// loopMounted reports whether path is the backing of a loop device.
func loopMounted(path string) (bool, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	files, err := filepath.Glob(loopBackings)
	if err != nil {
		return false, err
	}
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // detached meanwhile
		}
		if err != nil {
			return false, fmt.Errorf("backing of a loop device: %w", err)
		}
		if strings.TrimSuffix(string(backing), "\n") == real {
			return true, nil
		}
	}
	return false, nil
}
