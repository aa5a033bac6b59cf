package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/test/postgres"
)

// plan is how much is killed, and when.
type plan struct {
	kills, upgrades int
	seed            uint64
	gap             time.Duration // the longest pause between two kills
	database        bool          // pgbench is among the applications
}

// chosenPlan is the short one, or the one that the environment asks for.
func chosenPlan(t *testing.T) plan {
	p := plan{kills: 60, upgrades: 3, seed: 1, gap: 500 * time.Millisecond}
	seed := int(p.seed)
	numberFromEnv(t, "NVFS_CHAOS_KILLS", &p.kills)
	numberFromEnv(t, "NVFS_CHAOS_UPGRADES", &p.upgrades)
	numberFromEnv(t, "NVFS_CHAOS_SEED", &seed)
	p.seed = uint64(seed)
	if p.database = os.Getenv("NVFS_CHAOS_DATABASE") == "1"; p.database {
		if _, _, err := postgres.Find(); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// numberFromEnv reads a number from the environment, where there is one.
func numberFromEnv(t *testing.T, name string, into *int) {
	t.Helper()
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

// TestChaos is what the package is about.
func TestChaos(t *testing.T) {
	p := chosenPlan(t)
	n := newNode(t)
	apps, probes := n.applications(p)
	n.cycled = n.createVolume("cycled", volumeBytes, overDev)
	apps = append(apps, cycle(n.cycled))

	run := startApps(apps)
	n.wreak(p, run, probes)
	run.finish(t)
	for _, v := range n.volumes {
		if c, err := connectionAt(v.target); err != nil || c != v.connection {
			t.Errorf("volume %s was mounted anew: connection %s, before %s, %v", v.id, c, v.connection, err)
		}
	}
	n.tidyUp(append(slices.Clone(n.volumes), n.cycled))
}

// Classes of volumes.
var (
	overDev   = map[string]string{"transport": "dev"}
	overUring = map[string]string{"transport": "uring"}
)

const (
	volumeBytes   = 256 << 20
	databaseBytes = 512 << 20
)

// applications mounts volumes, and returns what is to work on them; each has a
// probe of its own.
func (n *node) applications(p plan) (apps []app, probes []*pauses) {
	work := []func(v *volume) []app{
		func(v *volume) []app { return []app{fio(v.target)} },
		func(v *volume) []app {
			return []app{storm(filepath.Join(v.target, "storm"), p.seed), storm(filepath.Join(v.target, "storm 2"), p.seed+1)}
		},
		func(v *volume) []app {
			return []app{orphan(v.target, p.seed), storm(filepath.Join(v.target, "storm"), p.seed+2)}
		},
	}
	if p.database {
		work = append(work, func(v *volume) []app {
			n.openTo(v.target)
			return []app{database(filepath.Join(v.target, "database"), filepath.Join(n.dir, "postgres"))}
		})
	}
	for i, start := range work {
		size := int64(volumeBytes)
		if i == 3 {
			size = databaseBytes
		}
		v := n.createVolume(fmt.Sprintf("volume-%d", i), size, overDev)
		n.mustUp(v)
		n.volumes = append(n.volumes, v)
		pause := &pauses{}
		probes = append(probes, pause)
		apps = append(apps, probe(filepath.Join(v.target, "probe"), pause))
		apps = append(apps, start(v)...)
	}
	return apps, probes
}

// openTo lets everybody reach a directory of the node.
func (n *node) openTo(dir string) {
	n.t.Helper()
	for ; strings.HasPrefix(dir, n.dir); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
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
	waits := waits{}
	began := time.Now()
	for kills, upgrades := 0, 0; kills < p.kills && !run.failed(); {
		time.Sleep(time.Duration(r.Int64N(int64(p.gap))))
		waits.note("nothing, in the time between two kills", probes)
		if upgrades < p.upgrades && kills >= p.kills*(2*upgrades+1)/(2*p.upgrades) {
			upgrades++
			n.upgrade()
			waits.note("upgrade", probes)
		}
		during := n.cycled.phase()
		kinds := n.killSome(r)
		for _, kind := range kinds {
			killed[kind]++
		}
		killed["of these while a volume was being "+during]++
		kills += len(kinds)
		n.recover(probes)
		waits.noteLongest(strings.Join(kinds, ", then "), probes)
	}
	n.t.Logf("seed %d, %v: killed %v", p.seed, time.Since(began).Round(time.Second), killed)
	for _, kind := range slices.Sorted(maps.Keys(waits)) {
		n.t.Logf("longest wait of a 512-byte write, by %s: %s", kind, spread(waits[kind]))
	}
	total, lettingGo := n.exchangePauses()
	n.t.Logf("pause of an exchange, as mountd sees it: %s; of it until the old server let go: %s", spread(total), spread(lettingGo))
}

// waits are the longest waits of single operations, by what happened meanwhile.
type waits map[string][]time.Duration

// note takes the longest wait of each volume, and begins a new measurement.
func (w waits) note(kind string, probes []*pauses) {
	for _, p := range probes {
		w[kind] = append(w[kind], p.mark())
	}
}

// noteLongest is note for what happens to one volume, it does not say which.
func (w waits) noteLongest(kind string, probes []*pauses) {
	var longest time.Duration
	for _, p := range probes {
		longest = max(longest, p.mark())
	}
	w[kind] = append(w[kind], longest)
}

// spread describes durations, which it sorts.
func spread(list []time.Duration) string {
	if len(list) == 0 {
		return "none"
	}
	slices.Sort(list)
	at := func(percent int) time.Duration { return list[(len(list)-1)*percent/100].Round(10 * time.Microsecond) }
	return fmt.Sprintf("median %v, 95 %% within %v, worst %v (of %d)", at(50), at(95), at(100), len(list))
}

// exchangeLine is what mountd logs when it has replaced a server.
var exchangeLine = regexp.MustCompile(`The server of a volume was replaced".* pause="([^"]+)" ofItLettingGo="([^"]+)"`)

// exchangePauses are how long users had to wait for exchanges of servers, by the
// log of mountd, and how much of that for the old server.
func (n *node) exchangePauses() (total, lettingGo []time.Duration) {
	n.t.Helper()
	log, err := os.ReadFile(filepath.Join(n.runDir(), "log", "@mountd.log"))
	if err != nil {
		n.t.Error(err)
	}
	for _, m := range exchangeLine.FindAllStringSubmatch(string(log), -1) {
		all, err := time.ParseDuration(m[1])
		first, firstErr := time.ParseDuration(m[2])
		if err := errors.Join(err, firstErr); err != nil {
			n.t.Error(err)
		}
		total, lettingGo = append(total, all), append(lettingGo, first)
	}
	return total, lettingGo
}

// killSome kills a process of a random kind, and sometimes another one, of any
// kind, while a server is being replaced. It says which.
func (n *node) killSome(r *rand.Rand) []string {
	first := n.killOne(r)
	if first != "server" || r.IntN(3) > 0 {
		return []string{first}
	}
	time.Sleep(time.Duration(r.Int64N(int64(30 * time.Millisecond)))) // in the middle of the recovery, or soon after it
	return []string{first, n.killOne(r)}
}

// killOne kills one process.
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
	case k < 12:
		// The server of a volume that is being mounted or unmounted, where
		// there is one.
		if pid := n.cycled.server(); pid != 0 {
			n.kill(pid)
			return "server of the cycled volume"
		}
	}
	n.kill(n.awaitServer(n.volumes[r.IntN(len(n.volumes))]))
	return "server"
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
	n.await("no server is left", func() bool { return len(n.servers()) == 0 })
	n.await("no connection is held", func() bool {
		return len(connectionsOf(n.keeperPID()))+len(connectionsOf(n.driver.Process.Pid)) == 0
	})
	if mounts := n.mounts(); len(mounts) > 0 {
		n.t.Errorf("left mounted: %q", mounts)
	}
	n.await("nothing of any volume is open", func() bool { return len(n.openFiles()) == 0 })
	n.checkLeftFiles()
	for _, name := range []string{"keeper", "mountd", "node"} {
		if pids := n.processes(name); len(pids) != 1 {
			n.t.Errorf("processes %q: %v, want one", name, pids)
		}
	}
}

// checkLeftFiles wants nothing of any volume in the directories of the node:
// no lock, socket, log, record, device or cgroup.
func (n *node) checkLeftFiles() {
	for _, pattern := range []string{
		filepath.Join(n.runDir(), "*"), filepath.Join(n.runDir(), "log", "*"),
		filepath.Join(n.dir, "state", "volumes", "*"), filepath.Join(n.dir, "region0", "*"),
		"/sys/fs/cgroup/nvfs-csi/*", "/sys/fs/cgroup/unified/nvfs-csi/*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, name := range found {
			if slices.ContainsFunc(n.ids, func(id string) bool { return strings.Contains(filepath.Base(name), id) }) {
				n.t.Errorf("left behind: %s", name)
			}
		}
	}
}
