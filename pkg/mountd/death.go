package mountd

import (
	"fmt"
	"syscall"
)

// death is how a serving process ended that should not have.
type death struct {
	pid   int
	how   string // exit status, signal or out of memory
	words string // the last lines of its log
	// own means that the process, and so perhaps the request that it was
	// executing, is to blame; otherwise somebody has killed it, or it is not
	// known.
	own bool
}

func (d *death) String() string {
	if d.words == "" {
		return d.how
	}
	return d.how + ": " + d.words
}

// exitHandedOver is the exit code of a process that has let go of its volume
// for a successor.
const exitHandedOver = 3

// death says how a process that has ended did.
func (d *daemon) death() death {
	x := death{pid: d.cmd.Process.Pid, how: d.cmd.ProcessState.String(), words: d.logTail(), own: true}
	status, _ := d.cmd.ProcessState.Sys().(syscall.WaitStatus)
	select {
	case <-d.hung:
		x.how = "it did not get on and was killed"
		return x
	default:
	}
	if status.Signaled() && status.Signal() == syscall.SIGKILL {
		if d.group.outOfMemory() {
			x.how = "out of memory: the limit of its cgroup is too low, or the machine's memory is used up"
			return x
		}
		x.own = false
	}
	if status.Signaled() && status.Signal() == syscall.SIGTERM {
		x.own = false
	}
	return x
}

// unknownDeath is that of a process that somebody else had started.
func unknownDeath(pid int) death {
	return death{pid: pid, how: fmt.Sprintf("process %d has ended; the supervisor that had started it did not live to see how", pid)}
}

// The weight of a death in a recovery. A request has ended two processes when
// its weight reaches refuseWeight: both by themselves, or so many that were
// killed that it is the likelier explanation.
const (
	ownWeight    = 3
	otherWeight  = 1
	refuseWeight = 6
)

func (d *death) weight() int {
	if d.own {
		return ownWeight
	}
	return otherWeight
}

// suspects are the requests in whose execution serving processes ended.
type suspects struct {
	first  int // weight of the death by which the recovery began
	weight map[uint64]int
}

// began notes the death of a process that was not recovering.
func (s *suspects) began(d death) { *s = suspects{first: d.weight()} }

// died notes the death of a process that was executing a request which had
// been sent again; 0: none.
func (s *suspects) died(d death, unique uint64) {
	if unique == 0 {
		return
	}
	if s.weight == nil {
		s.weight = map[uint64]int{}
	}
	if s.weight[unique] == 0 {
		s.weight[unique] = s.first
	}
	s.weight[unique] += d.weight()
}

// refused are the requests that are not to be executed again.
func (s *suspects) refused() []uint64 {
	var list []uint64
	for unique, weight := range s.weight {
		if weight >= refuseWeight {
			list = append(list, unique)
		}
	}
	return list
}
