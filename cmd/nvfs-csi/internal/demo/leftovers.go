package demo

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// leftovers are traces of a run that names a directory.
type leftovers struct {
	mounts    []string // mount points
	processes []string // "PID command line"
	loops     []string // loop devices
	files     []string // below the regions and the kubelet's directories
}

// findLeftovers looks for everything that has to do with root. Regions keep
// their own metadata file, which is not a leftover of a volume.
func findLeftovers(l layout) (leftovers, error) {
	var found leftovers
	var err error
	if found.mounts, err = mountsBelow(l.root); err != nil {
		return found, err
	}
	if found.processes, err = processesNaming(l.root); err != nil {
		return found, err
	}
	if found.loops, err = loopsBackedBy(l.root); err != nil {
		return found, err
	}
	found.files, err = l.volumeFiles()
	return found, err
}

func (f leftovers) none() bool {
	return len(f.mounts)+len(f.processes)+len(f.loops)+len(f.files) == 0
}

// mountsBelow lists mount points, deepest last as they were mounted.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []string
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		fields := strings.Fields(scan.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			found = append(found, fields[4])
		}
	}
	return found, scan.Err()
}

// processesNaming lists the other processes whose command line names dir.
func processesNaming(dir string) ([]string, error) {
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range procs {
		pid := filepath.Base(filepath.Dir(name))
		line, err := os.ReadFile(name)
		if err != nil || pid == strconv.Itoa(os.Getpid()) || !bytes.Contains(line, []byte(dir)) {
			continue // ended meanwhile, or is not ours
		}
		args := strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		found = append(found, pid+" "+args)
	}
	return found, nil
}

func loopsBackedBy(dir string) ([]string, error) {
	backings, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range backings {
		if file, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(file), dir+"/") {
			found = append(found, "/dev/"+strings.Split(name, "/")[3])
		}
	}
	return found, nil
}

// volumeFiles lists the namespaces' files, the per-volume state, the control
// sockets and whatever lies below the kubelet's staging and target paths. The
// log of the serving process, and the empty file that it locked, are kept.
func (l layout) volumeFiles() ([]string, error) {
	var found []string
	roots := []string{l.state(), l.run(), l.peer(), l.staging(), l.target()}
	for numa := range regionCount {
		roots = append(roots, l.region(numa))
	}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			if err != nil || d.IsDir() || !strings.Contains(filepath.Base(name), volumeName) {
				return err
			}
			if ext := filepath.Ext(name); root == l.run() && (ext == ".log" || ext == ".lock") {
				return nil
			}
			found = append(found, name)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
