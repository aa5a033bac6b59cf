package mountd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd/mountdtest"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// helperEnv makes the test binary what nvfs-csi is: a serving process, mountd
// or the keeper, by its first argument.
const helperEnv = "MOUNTD_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM)
	err := runHelper(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args[1]+":", err)
		os.Exit(max(1, ExitCode(err)))
	}
	os.Exit(0)
}

// oldKernelEnv makes mountd take the kernel for one before Linux 6.9.
const oldKernelEnv = "MOUNTD_TEST_OLD_KERNEL"

// hangTimeoutEnv is the watchdog's limit in tests.
const hangTimeoutEnv = "MOUNTD_TEST_HANG"

func runHelper(ctx context.Context) error {
	linkFD := 0
	if text := argument("--link-fd"); text != "" {
		linkFD, _ = strconv.Atoi(text)
	}
	onDemand := slices.Contains(os.Args, "--on-demand")
	switch os.Args[1] {
	case "keeper":
		return RunKeeper(ctx, KeeperOptions{Executable: os.Args[0], StateDir: argument("--state-dir"), LogDir: argument("--log-dir"), Args: []string{"mountd"}, OnDemand: onDemand, LinkFD: linkFD})
	case "mountd":
		hang, _ := time.ParseDuration(os.Getenv(hangTimeoutEnv))
		return RunSupervisor(ctx, SupervisorOptions{Executable: os.Args[0], StateDir: argument("--state-dir"), LogDir: argument("--log-dir"), Version: "test",
			ServeArgs: []string{SpareCommand}, KeeperArgs: []string{"keeper"}, OnDemand: onDemand, LinkFD: linkFD, HangTimeout: hang, NoResend: os.Getenv(oldKernelEnv) != "",
			CgroupRoot: DefaultCgroupRoot})
	}
	if os.Args[1] == "holder" {
		// A process of its own: one with files open on the volume cannot start
		// others while nobody serves it.
		NewLauncher(LauncherOptions{Executable: os.Args[0], StateDir: argument("--state-dir"), LogDir: argument("--log-dir")}).Hold(ctx)()
		return nil
	}
	o := ServeOptions{Version: "test", StateDir: argument("--state-dir"), LinkFD: linkFD, OpenVolume: openTestVolume, Prepare: prepareTestVolume}
	if os.Args[1] == foregroundCommand {
		return ServeForeground(ctx, foregroundSpec(argument("--path"), argument("--mountpoint")), o)
	}
	return Serve(ctx, o)
}

// argument is what follows a flag on the command line; "" without it.
func argument(flag string) string {
	if i := slices.Index(os.Args, flag); i >= 0 {
		return os.Args[i+1]
	}
	return ""
}

// testVolume is a volume in memory. Its path names a file whose content says
// how opening it goes; "clean" in it is what a real volume's clean mark is.
type testVolume struct {
	fusefs.Filesystem
	space     *pmem.Mapping
	path      string
	grown     bool
	volatile  bool
	uncounted bool // statfs never returns, as while the volume is counted
	large     bool // takes long to close
}

func openTestVolume(spec Spec, o OpenOptions) (Volume, error) {
	content, err := os.ReadFile(spec.Path)
	if err != nil {
		return nil, err
	}
	switch string(content) {
	case "damaged":
		return nil, errors.New("volume is damaged: both superblocks fail their checksum")
	case "crash":
		fmt.Fprintln(os.Stderr, "these are the last words")
		os.Exit(7)
	case "hang":
		select {}
	}
	if err := os.WriteFile(spec.Path, []byte("dirty"), 0o600); err != nil {
		return nil, err
	}
	if isReal(spec) {
		return openRealVolume(spec, o)
	}
	space, err := pmem.NewMemory(16 << 20)
	if err != nil {
		return nil, err
	}
	v := &testVolume{Filesystem: fusefs.NewNull(space), space: space, path: spec.Path,
		volatile: string(content) == "volatile", uncounted: string(content) == "uncounted",
		large: string(content) == "large"}
	if string(content) == "clinging" {
		return clingingVolume{v}, nil
	}
	return v, nil
}

// clingingVolume ends its process instead of letting go of the volume.
type clingingVolume struct{ *testVolume }

func (clingingVolume) EndResume() error                { return nil }
func (clingingVolume) Orphans() ([]nvfs.NodeID, error) { return nil, nil }
func (clingingVolume) ReleaseOrphan(nvfs.NodeID) error { return nil }
func (clingingVolume) Detach() error                   { os.Exit(9); return nil }

func (v *testVolume) NewWorker() (fusefs.Worker, error) {
	w, err := v.Filesystem.NewWorker()
	return faultyWorker{w, v.uncounted}, err
}

func (v *testVolume) Close() error {
	if v.large {
		time.Sleep(100 * time.Millisecond)
	}
	return errors.Join(v.space.Close(), os.WriteFile(v.path, []byte("clean"), 0o600))
}
func (v *testVolume) Grow(...string) (uint64, error) {
	if v.grown {
		return 0, errors.New("the device has not grown")
	}
	v.grown = true
	return v.SizeBytes(), nil
}
func (v *testVolume) Emulated() bool { return v.volatile }
func (v *testVolume) Health() string { return "" }
func (v *testVolume) Flush() string  { return "clwb (chosen for the test)" }
func (v *testVolume) ReadOnly() bool { return false }
func (v *testVolume) SizeBytes() uint64 {
	if v.grown {
		return 32 << 20
	}
	return 16 << 20
}

// faultyWorker panics when "poison" is looked up.
type faultyWorker struct {
	fusefs.Worker
	uncounted bool
}

func (w faultyWorker) Lookup(parent nvfs.NodeID, name []byte, a *nvfs.Attr) error {
	switch string(name) {
	case "poison":
		panic("poisoned memory")
	case "stuck":
		select {}
	case "deadly":
		fmt.Fprintln(os.Stderr, "a deadly request")
		os.Exit(9)
	}
	return w.Worker.Lookup(parent, name, a)
}

// node is a test's launcher, volume and mount point.
type node struct {
	t    *testing.T
	l    *Launcher
	spec Spec
}

func newNode(t *testing.T, content string) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts FUSE and must run as root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Fatalf("this test mounts FUSE: %v", err)
	}
	t.Setenv(helperEnv, "1")
	dir := t.TempDir()
	n := &node{t: t}
	n.l = NewLauncher(LauncherOptions{Executable: os.Args[0], StateDir: filepath.Join(dir, "state"), LogDir: filepath.Join(dir, "log")})
	n.spec = Spec{VolumeID: "vol-1", Path: filepath.Join(dir, "medium"), Mountpoint: filepath.Join(dir, "mnt"), NUMANode: -1, Emulated: true, AllowOther: true}
	must(t, os.WriteFile(n.spec.Path, []byte(content), 0o600))
	must(t, os.Mkdir(n.spec.Mountpoint, 0o755))
	t.Cleanup(n.cleanup)
	return n
}

// cleanup takes off what a failed test has left, and fails a test that left
// anything.
func (n *node) cleanup() {
	for range maxStacked {
		mounted, err := fusefs.IsMountPoint(n.spec.Mountpoint)
		must(n.t, err)
		if !mounted {
			break
		}
		n.t.Error("a mount was left behind")
		must(n.t, fusefs.Detach(n.spec.Mountpoint))
	}
	n.awaitNoServer()
	n.eventually("keeper and mountd end with the last volume", func() bool {
		return n.service(keeperName) == nil && n.service(mountdName) == nil
	})
	if n.t.Failed() {
		n.t.Log(n.logs())
	}
}

// awaitNoServer waits until the last server has ended and mountd has noticed.
func (n *node) awaitNoServer() {
	n.t.Helper()
	for ctx := within(n.t); ; time.Sleep(5 * time.Millisecond) {
		p := n.process()
		if p == nil {
			return
		}
		if ctx.Err() != nil {
			n.t.Error("a process was left behind")
			must(n.t, unix.Kill(p.pid, unix.SIGKILL))
		}
		p.Close()
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within is a context that no step of a healthy test comes near to ending.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func (n *node) mount() {
	n.t.Helper()
	must(n.t, n.l.Mount(within(n.t), n.spec))
}

func (n *node) unmount() {
	n.t.Helper()
	must(n.t, n.l.Unmount(within(n.t), n.spec.VolumeID, n.spec.Mountpoint))
}

// process is the serving process; nil when there is none.
func (n *node) process() *process {
	n.t.Helper()
	probe, err := openProbe(lockPath(n.l.opts.StateDir, n.spec.VolumeID))
	must(n.t, err)
	if probe == nil {
		return nil
	}
	defer probe.Close()
	p, err := probe.process()
	must(n.t, err)
	return p
}

// running is the serving process, which must be there.
func (n *node) running() *process {
	n.t.Helper()
	p := n.process()
	if p == nil {
		n.t.Fatal("no process serves the volume")
	}
	n.t.Cleanup(func() { p.Close() })
	return p
}

func (n *node) checkMounted(want bool) {
	n.t.Helper()
	mounted, err := fusefs.IsMountPoint(n.spec.Mountpoint)
	must(n.t, err)
	if mounted != want {
		n.t.Errorf("mounted: %v, want %v", mounted, want)
	}
}

func (n *node) checkMedium(want string) {
	n.t.Helper()
	b, err := os.ReadFile(n.spec.Path)
	must(n.t, err)
	if string(b) != want {
		n.t.Errorf("the medium is %q, want %q", b, want)
	}
}

func checkError(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// StatFS of a volume that is still being counted does not return.
func (w faultyWorker) StatFS(s *nvfs.StatFS) error {
	if w.uncounted {
		select {}
	}
	return w.Worker.StatFS(s)
}

// service is the keeper or mountd; nil when there is none.
func (n *node) service(name string) *process {
	n.t.Helper()
	probe, err := openProbe(serviceLock(n.l.opts.StateDir, name))
	must(n.t, err)
	if probe == nil {
		return nil
	}
	defer probe.Close()
	p, err := probe.process()
	must(n.t, err)
	if p != nil {
		n.t.Cleanup(func() { p.Close() })
	}
	return p
}

// eventually waits for a condition that comes about by itself.
func (n *node) eventually(what string, condition func() bool) {
	n.t.Helper()
	for ctx := within(n.t); !condition(); time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil {
			n.t.Fatalf("not in time: %s\n%s", what, n.logs())
		}
	}
}

// freeze stops a process with SIGSTOP.
func (n *node) freeze(p *process) {
	n.t.Helper()
	must(n.t, mountdtest.Freeze(within(n.t), p.pid))
}

// logs is what all processes have logged.
func (n *node) logs() string {
	names, _ := filepath.Glob(filepath.Join(n.l.opts.LogDir, "*.log"))
	var all strings.Builder
	for _, name := range names {
		b, _ := os.ReadFile(name)
		fmt.Fprintf(&all, "%s:\n%s", filepath.Base(name), b)
	}
	return all.String()
}

// killAll ends everybody who holds the connection, so that it ends.
func (n *node) killAll() {
	n.t.Helper()
	n.killTogether(true)
}

// killServices ends keeper and mountd at once.
func (n *node) killServices() {
	n.t.Helper()
	n.killTogether(false)
}

func (n *node) killTogether(server bool) {
	n.t.Helper()
	var all []*process
	for _, name := range []string{keeperName, mountdName} {
		n.eventually(name+" runs", func() bool { return n.service(name) != nil })
		p := n.service(name)
		n.freeze(p) // else they would restart each other
		all = append(all, p)
	}
	if server {
		n.eventually("a server runs", func() bool { return n.process() != nil })
		all = append(all, n.running())
	}
	for _, p := range all {
		must(n.t, p.kill())
		must(n.t, p.wait(within(n.t)))
	}
}

// checkFiles waits until there are these names below the state and log
// directories, apart from those of keeper and mountd.
func (n *node) checkFiles(want ...string) {
	n.t.Helper()
	var got []string
	for ctx := within(n.t); ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		if got = n.files(); slices.Equal(got, want) {
			return
		}
	}
	n.t.Errorf("files %q, want %q", got, want)
}

func (n *node) files() []string {
	n.t.Helper()
	var got []string
	for _, dir := range []string{n.l.opts.StateDir, n.l.opts.LogDir} {
		entries, err := os.ReadDir(dir)
		must(n.t, err)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "@") {
				got = append(got, e.Name())
			}
		}
	}
	return got
}
