package chaos

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A connection over io_uring does not survive its server, but everything else:
// mountd, the driver, and an upgrade, during which the server goes on as it is.
// When the server dies the users get errors at once, the volume counts as
// inaccessible, and can be staged again.
func TestUring(t *testing.T) {
	n := newNode(t)
	v := n.createVolume("uring", volumeBytes, overUring)
	n.mustUp(v)
	n.volumes = append(n.volumes, v)
	server := n.awaitServer(v)
	pause := &pauses{}
	run := startApps([]app{probe(filepath.Join(v.target, "probe"), pause), storm(filepath.Join(v.target, "storm"), 1)})
	for range 3 {
		n.killMountd()
		n.recover(nil)
		n.killDriver()
		n.recover(nil)
	}
	old := n.keepers[len(n.keepers)-1]
	n.startKeeper()
	n.awaitHolders()
	n.await("the new mountd looks after the volume", func() bool {
		pids := n.processes("mountd")
		return len(pids) == 1 && parentOf(pids[0]) == n.keeperPID() && slices.Contains(connectionsOf(pids[0]), v.connection)
	})
	n.recover(nil)
	if pid := v.server(); pid != server {
		t.Errorf("process %d serves instead of %d", pid, server)
	}
	if ended(old.Process.Pid) {
		t.Error("the old keeper, the first process of the server's container, has ended")
	}
	run.finish(t)
	writeMarker(t, v)

	n.kill(server)
	n.volumes = nil
	n.restageDead(v, overUringText)
	_ = old.Wait() // its last server has ended
	n.tidyUp([]*volume{v})
}

const overUringText = "over transport uring ends with it"

// uringCallers is how many programs use the volume when its server is killed.
const uringCallers = 4

// What is lost when a server over io_uring is killed: the calls that it had not
// answered, which get errors within bounded time, and nothing that it had. The
// count is why uring is not what a class gets by default.
// NVFS_CHAOS_URING_KILLS is how often.
func TestUringLosses(t *testing.T) {
	kills := 3
	numberFromEnv(t, "NVFS_CHAOS_URING_KILLS", &kills)
	n := newNode(t)
	v := n.createVolume("losses", volumeBytes, overUring)
	n.mustUp(v)
	var calls, lossy int
	var waits []time.Duration
	for range kills {
		lost, wait := n.killUnderCallers(v)
		calls += lost
		if lost > 0 {
			lossy++
		}
		waits = append(waits, wait)
		if t.Failed() {
			break
		}
		if err := v.down(); err != nil {
			t.Fatal(err)
		}
		n.mustUp(v)
		checkCounters(t, v)
	}
	slices.Sort(waits)
	t.Logf("%d servers over uring killed under %d callers: %d kills lost calls, %d calls in all; the last caller had its error after: median %v, worst %v",
		len(waits), uringCallers, lossy, calls, waits[len(waits)/2].Round(time.Microsecond), waits[len(waits)-1].Round(time.Microsecond))
	n.tidyUp([]*volume{v})
}

// killUnderCallers kills the volume's server while programs write. It returns
// how many of them lost the call that they were in, the others having begun
// theirs afterwards, and how long it took until each had an error.
func (n *node) killUnderCallers(v *volume) (lost int, wait time.Duration) {
	n.t.Helper()
	var wg sync.WaitGroup
	ends := make([]error, uringCallers)
	started := make(chan struct{}, uringCallers)
	for i := range ends {
		wg.Go(func() { ends[i] = callUntilError(counterFile(v, i), started) })
	}
	for range ends {
		<-started
	}
	killed := time.Now()
	n.kill(n.awaitServer(v))
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(settleTimeout):
		n.t.Fatalf("callers hang\n%s", n.logs())
	}
	wait = time.Since(killed)
	for _, err := range ends {
		if unlessEnded(err) != nil {
			n.t.Errorf("a caller got %v", err)
		}
		if !errors.Is(err, unix.ENOTCONN) {
			lost++
		}
	}
	return lost, wait
}

func counterFile(v *volume, i int) string {
	return filepath.Join(v.target, fmt.Sprintf("counter %d", i))
}

// callUntilError counts up in a file until a call fails.
func callUntilError(name string, started chan<- struct{}) error {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_SYNC, 0o600)
	if err != nil {
		started <- struct{}{}
		return err
	}
	defer f.Close()
	acknowledged.Delete(name)
	for i := uint64(1); ; i++ {
		if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, i), 0); err != nil {
			return err
		}
		acknowledged.Store(name, i)
		if i == 100 {
			started <- struct{}{}
		}
	}
}

// acknowledged is the last number of each counter whose write has returned.
var acknowledged sync.Map

// checkCounters wants what was acknowledged, or the one number after it, whose
// answer was lost.
func checkCounters(t *testing.T, v *volume) {
	t.Helper()
	for i := range uringCallers {
		name := counterFile(v, i)
		b, err := os.ReadFile(name)
		last, _ := acknowledged.Load(name)
		want, _ := last.(uint64)
		if err != nil || len(b) != 8 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
			continue
		}
		if got := binary.LittleEndian.Uint64(b); got != want && got != want+1 {
			t.Errorf("%s holds %d, %d was acknowledged", name, got, want)
		}
	}
}
