package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// plan is how much is killed, and when.
type plan struct {
	kills, upgrades int
	seed            uint64
	gap             time.Duration // the longest pause between two kills
}

// chosenPlan is the short one, or the one that the environment asks for.
func chosenPlan(t *testing.T) plan {
	p := plan{kills: 60, upgrades: 3, seed: 1, gap: 500 * time.Millisecond}
	number := func(name string, into *int) {
		text := os.Getenv(name)
		if text == "" {
			return
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			t.Fatalf("%s=%q is no number", name, text)
		}
		*into = n
	}
	seed := int(p.seed)
	number("NVFS_CHAOS_KILLS", &p.kills)
	number("NVFS_CHAOS_UPGRADES", &p.upgrades)
	number("NVFS_CHAOS_SEED", &seed)
	p.seed = uint64(seed)
	return p
}

// TestChaos is what the package is about.
func TestChaos(t *testing.T) {
	p := chosenPlan(t)
	n := newNode(t)
	var apps []app
	var probes []*pauses
	for i := range 3 {
		v := n.createVolume(fmt.Sprintf("volume-%d", i))
		if err := v.up(); err != nil {
			t.Fatalf("%v\n%s", err, n.logs())
		}
		var err error
		if v.connection, err = connectionAt(v.staging); err != nil {
			t.Fatal(err)
		}
		n.volumes = append(n.volumes, v)
		pause := &pauses{}
		probes = append(probes, pause)
		apps = append(apps, probe(filepath.Join(v.target, "probe"), pause))
		switch i {
		case 0:
			apps = append(apps, fio(v.target))
		case 1:
			apps = append(apps, storm(filepath.Join(v.target, "storm"), p.seed), storm(filepath.Join(v.target, "storm 2"), p.seed+1))
		case 2:
			apps = append(apps, orphan(v.target, p.seed), storm(filepath.Join(v.target, "storm"), p.seed+2))
		}
	}
	cycled := n.createVolume("cycled")
	apps = append(apps, cycle(cycled))

	run := startApps(apps)
	n.wreak(p, run, probes)
	run.finish(t)
	for _, v := range n.volumes {
		if c, err := connectionAt(v.target); err != nil || c != v.connection {
			t.Errorf("volume %s was mounted anew: connection %s, before %s, %v", v.id, c, v.connection, err)
		}
	}
	n.tidyUp(append(slices.Clone(n.volumes), cycled))
}

// running are applications at work.
type running struct {
	stop   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
	mu     sync.Mutex
	errors []error
}

func startApps(apps []app) *running {
	r := &running{stop: make(chan struct{})}
	for _, a := range apps {
		r.wg.Go(func() {
			if err := a.run(r.stop); err != nil {
				r.mu.Lock()
				r.errors = append(r.errors, fmt.Errorf("%s: %w", a.name, err))
				r.mu.Unlock()
			}
		})
	}
	return r
}

// failed reports whether an application has seen an error.
func (r *running) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.errors) > 0
}

// finish stops the applications; none may have seen an error.
func (r *running) finish(t *testing.T) {
	t.Helper()
	r.once.Do(func() { close(r.stop) })
	r.wg.Wait()
	for _, err := range r.errors {
		t.Errorf("an application has noticed: %v", err)
	}
}

// wreak kills and upgrades, and prints how long the applications had to wait.
func (n *node) wreak(p plan, run *running, probes []*pauses) {
	r := rand.New(rand.NewPCG(p.seed, 3))
	killed := map[string]int{}
	waits := map[string][]time.Duration{}
	mark := func(kind string) {
		var longest time.Duration
		for _, pause := range probes {
			longest = max(longest, pause.mark())
		}
		waits[kind] = append(waits[kind], longest)
	}
	mark("before")
	for i := 0; i < p.kills && !run.failed(); i++ {
		time.Sleep(time.Duration(r.Int64N(int64(p.gap))))
		if p.upgrades > 0 && i%(p.kills/p.upgrades) == p.kills/p.upgrades/2 {
			n.upgrade()
			mark("upgrade")
		}
		kind := n.killOne(r)
		killed[kind]++
		n.recover(probes)
		mark(kind)
	}
	n.t.Logf("killed: %v", killed)
	for kind, list := range waits {
		slices.Sort(list)
		n.t.Logf("longest wait of a 512-byte write, by %s: median %v, worst %v", kind, list[len(list)/2].Round(time.Microsecond), list[len(list)-1].Round(time.Microsecond))
	}
}

// killOne kills a process of a random kind, and sometimes another one while
// the first is being replaced.
func (n *node) killOne(r *rand.Rand) string {
	switch k := r.IntN(20); {
	case k < 3:
		n.killKeeper()
		return "keeper"
	case k < 6:
		n.killDriver()
		return "driver"
	case k < 10:
		n.killMountd()
		return "mountd"
	case k < 16:
		n.kill(n.awaitServer(n.volumes[r.IntN(len(n.volumes))]))
		return "server"
	}
	v := n.volumes[r.IntN(len(n.volumes))]
	n.kill(n.awaitServer(v))
	time.Sleep(time.Duration(r.Int64N(int64(30 * time.Millisecond))))
	n.kill(n.awaitServer(v)) // in the middle of its recovery, or soon after it
	return "server in recovery"
}

func (n *node) awaitServer(v *volume) (pid int) {
	n.t.Helper()
	n.await("a server of "+v.id, func() bool {
		pid = v.server()
		return pid != 0
	})
	return pid
}

// recover waits until every volume answers again.
func (n *node) recover(probes []*pauses) {
	n.t.Helper()
	for _, v := range n.volumes {
		var st unix.Statx_t
		done := make(chan error, 1)
		go func() {
			done <- unix.Statx(unix.AT_FDCWD, v.target, unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
		}()
		select {
		case err := <-done:
			if err != nil {
				n.t.Errorf("volume %s: %v", v.id, err)
			}
		case <-time.After(settleTimeout):
			n.t.Fatalf("volume %s does not answer\n%s", v.id, n.logs())
		}
	}
}

// tidyUp takes everything down, checks the volumes and looks for leftovers.
func (n *node) tidyUp(volumes []*volume) {
	for _, v := range volumes {
		if err := v.down(); err != nil {
			n.t.Error(err)
		}
		device, err := v.device()
		if err != nil {
			n.t.Error(err)
			continue
		}
		if out, err := exec.Command(program, "fsck", "-n", device).CombinedOutput(); err != nil {
			n.t.Errorf("fsck of volume %s: %v\n%s", v.id, err, out)
		}
	}
	for _, v := range volumes {
		err := n.call("delete", func(ctx context.Context) error {
			_, err := csi.NewControllerClient(n.conn).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
			return err
		})
		if err != nil {
			n.t.Error(err)
		}
	}
	n.volumes = nil
	n.await("no server is left", func() bool { return len(n.processes("serve")) == 0 })
	n.await("no connection is held", func() bool {
		return len(connectionsOf(n.keeperPID()))+len(connectionsOf(n.driver.Process.Pid)) == 0
	})
	if mounts := n.mounts(); len(mounts) > 0 {
		n.t.Errorf("left mounted: %q", mounts)
	}
	left, err := filepath.Glob(filepath.Join(n.runDir(), "[^@]*"))
	left = slices.DeleteFunc(left, func(name string) bool { return filepath.Base(name) == "log" })
	if err != nil || len(left) > 0 {
		n.t.Errorf("left in the run directory: %q, %v", left, errors.Join(err))
	}
}
