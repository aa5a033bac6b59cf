package fusefs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/cpulist"
)

const sysfsCPU = "/sys/devices/system/cpu"

// queuePlan says which thread serves which of a connection's queues. The
// kernel has a queue for each CPU that the machine could have, and uses none
// of them before all have an entry; it puts a request in the queue of the CPU
// on which it was made.
type queuePlan struct {
	// cpu is where the thread runs; anyCPU for one that is not bound.
	cpu int
	// queues are numbered like the CPUs whose requests they hold.
	queues []int
}

const anyCPU = -1

// planQueues gives each CPU that is online a thread and lets one more, which
// is not bound, serve the queues of the others. What these get when their CPUs
// come online is served as well, if more slowly.
func planQueues(sysfs string) ([]queuePlan, error) {
	possible, err := cpulist.Read(filepath.Join(sysfs, "possible"))
	if err != nil {
		return nil, err
	}
	online, err := cpulist.Read(filepath.Join(sysfs, "online"))
	if err != nil {
		return nil, err
	}
	isOnline := map[int]bool{}
	for _, cpu := range online {
		isOnline[cpu] = true
	}
	var plan []queuePlan
	rest := queuePlan{cpu: anyCPU}
	for qid := range possible { // as many queues, numbered from 0, whatever the CPUs' numbers
		if isOnline[qid] {
			plan = append(plan, queuePlan{cpu: qid, queues: []int{qid}})
		} else {
			rest.queues = append(rest.queues, qid)
		}
	}
	if len(rest.queues) > 0 {
		plan = append(plan, rest)
	}
	return plan, nil
}

// uringParameter switches FUSE over io_uring, for connections made from then
// on.
const uringParameter = "/sys/module/fuse/parameters/enable_uring"

// EnableUring lets the kernel offer FUSE over io_uring to connections that are
// mounted from now on; it is off when a machine starts. changed reports that
// it was off. The setting is the machine's, needs root and is left on.
func EnableUring() (changed bool, err error) { return enableUring(uringParameter) }

func enableUring(parameter string) (changed bool, err error) {
	b, err := os.ReadFile(parameter)
	if errors.Is(err, fs.ErrNotExist) {
		return false, errors.New("this kernel has no FUSE over io_uring: it needs Linux 6.14 or later, built with CONFIG_FUSE_IO_URING, and the fuse module loaded")
	}
	if err != nil {
		return false, fmt.Errorf("FUSE over io_uring: %w", err)
	}
	if strings.HasPrefix(string(b), "Y") {
		return false, nil
	}
	if err := os.WriteFile(parameter, []byte("Y"), 0o644); err != nil {
		return false, fmt.Errorf("FUSE over io_uring is switched off on this machine; as root, write Y to %s: %w", parameter, err)
	}
	return true, nil
}
