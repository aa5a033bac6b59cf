package ndctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/internal/extent"
)

// The test binary is also the ndctl(1) of the tests of System: with fakeTreeEnv
// set it changes a directory that looks like sysfs, and does so as badly as the
// test asks it to.
const fakeTreeEnv = "NDCTL_TEST_TREE"

func TestMain(m *testing.M) {
	if tree := os.Getenv(fakeTreeEnv); tree != "" && len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(fakeTree(tree).command(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// fakeTree is a directory with bus/ like /sys/bus/nd/devices, and nodes/ with a
// file "c 253:0" for each device node.
type fakeTree string

// misbehaviour is what the next command does wrong; the file "misbehaviour"
// holds it.
type misbehaviour string

const (
	nothing      misbehaviour = ""
	lieSuccess   misbehaviour = "exit 0, do nothing"
	lieFailure   misbehaviour = "exit 1, do everything"
	half         misbehaviour = "stop in the middle, exit 1"
	halfAndHang  misbehaviour = "stop in the middle, never end"
	wrongName    misbehaviour = "take the name of another caller"
	loseSpace    misbehaviour = "take the space, list nothing, exit 1"
	tooSmall     misbehaviour = "offer 2 MiB less than usual"
	becomeInUse  misbehaviour = "refuse, somebody has mounted it"
	helperHangs  misbehaviour = "start a process that keeps the pipes open, and hang"
	noDeviceNode misbehaviour = "do everything but the device node"
)

func newFakeTree(t *testing.T, regions int, size, align uint64) fakeTree {
	tree := fakeTree(t.TempDir())
	for i := range regions {
		r := fmt.Sprintf("region%d", i)
		tree.write(filepath.Join("bus", r, "size"), strconv.FormatUint(size, 10))
		tree.write(filepath.Join("bus", r, "align"), fmt.Sprintf("%#x", align))
		tree.write(filepath.Join("bus", r, "numa_node"), strconv.Itoa(i))
		tree.write(filepath.Join("bus", r, "nstype"), "5")
		tree.write(filepath.Join("bus", r, "devtype"), "nd_pmem")
		tree.write(filepath.Join("bus", r, "mappings"), "1")
		tree.write(filepath.Join("bus", r, "mapping0"), fmt.Sprintf("nmem%d,0,%d,0", i, size))
		tree.write(filepath.Join("bus", r, "persistence_domain"), "memory_controller")
		tree.write(filepath.Join("bus", r, "resource"), fmt.Sprintf("%#x", uint64(i+1)<<32))
		tree.write(filepath.Join("bus", r, "driver"), "")
		tree.write(filepath.Join("bus", fmt.Sprintf("nmem%d", i), "available_slots"), "1000")
		tree.account(r)
	}
	t.Setenv(fakeTreeEnv, string(tree))
	return tree
}

// system returns a manager of the tree with its own lock directory.
func (tree fakeTree) system(lockDir string) *System {
	m := newSystem(ndBus{devices: tree.path("bus"), block: tree.path("block"), dev: "/dev", lstat: tree.lstat},
		tool{path: os.Args[0], timeout: 20 * time.Second}, lockDir)
	m.findUsers = func(all []sysNamespace) error {
		for i := range all {
			_, err := os.Stat(tree.path("used/" + all[i].Name))
			all[i].InUse = err == nil
		}
		return nil
	}
	m.claimed = func(Namespace) (bool, error) { return false, nil }
	return m
}

func (tree fakeTree) path(name string) string { return filepath.Join(string(tree), name) }

func (tree fakeTree) write(name, text string) {
	if err := os.MkdirAll(filepath.Dir(tree.path(name)), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(tree.path(name), []byte(text+"\n"), 0o644); err != nil {
		panic(err)
	}
}

func (tree fakeTree) read(name string) string {
	data, err := os.ReadFile(tree.path(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (tree fakeTree) number(name string) uint64 {
	n, _ := strconv.ParseUint(tree.read(name), 0, 64)
	return n
}

func (tree fakeTree) misbehave(m misbehaviour) { tree.write("misbehaviour", string(m)) }

func (tree fakeTree) lstat(path string, st *unix.Stat_t) error {
	node := tree.read("nodes/" + filepath.Base(path))
	var kind rune
	var major, minor uint32
	if _, err := fmt.Sscanf(node, "%c %d:%d", &kind, &major, &minor); err != nil {
		return unix.ENOENT
	}
	st.Mode = unix.S_IFBLK
	if kind == 'c' {
		st.Mode = unix.S_IFCHR
	}
	st.Rdev = unix.Mkdev(major, minor)
	return nil
}

func (tree fakeTree) used(region string) []extent.Extent {
	var used []extent.Extent
	dirs, _ := filepath.Glob(tree.path("bus/namespace" + region[len("region"):] + ".*"))
	lost, _ := filepath.Glob(tree.path("lost/namespace" + region[len("region"):] + ".*"))
	for _, dir := range append(dirs, lost...) {
		name := strings.TrimPrefix(dir, string(tree)+"/")
		used = append(used, extent.Extent{Offset: tree.number(name+"/resource") - tree.number("bus/"+region+"/resource"), Length: tree.number(name + "/size")})
	}
	return used
}

func (tree fakeTree) account(region string) {
	holes := extent.Holes(tree.number("bus/"+region+"/size"), tree.number("bus/"+region+"/align"), tree.used(region))
	tree.write("bus/"+region+"/available_size", strconv.FormatUint(extent.Total(holes), 10))
	tree.write("bus/"+region+"/max_available_extent", strconv.FormatUint(extent.Largest(holes), 10))
}

func (tree fakeTree) command(args []string) int {
	tree.write("commands/"+strconv.Itoa(os.Getpid()), strings.Join(args, " "))
	wrong := misbehaviour(tree.read("misbehaviour"))
	_ = os.Remove(tree.path("misbehaviour"))
	options := map[string]string{}
	for _, arg := range args[1:] {
		if key, value, found := strings.Cut(strings.TrimPrefix(arg, "--"), "="); found {
			options[key] = value
		}
	}
	switch wrong {
	case lieSuccess:
		return 0
	case helperHangs:
		tree.hangWithHelper()
	}
	switch args[0] {
	case "create-namespace":
		return tree.createNamespace(options, wrong)
	case "destroy-namespace":
		return tree.destroyNamespace(args[len(args)-1], wrong)
	}
	fmt.Fprintln(os.Stderr, "unknown command", args)
	return 1
}

func (tree fakeTree) createNamespace(o map[string]string, wrong misbehaviour) int {
	region := o["region"]
	size, _ := strconv.ParseUint(o["size"], 10, 64)
	holes := extent.Holes(tree.number("bus/"+region+"/size"), tree.number("bus/"+region+"/align"), tree.used(region))
	offset, ok := extent.BestFit(holes, size)
	if !ok {
		fmt.Fprintln(os.Stderr, "failed to create namespace: No space left on device")
		return 1
	}
	number := region[len("region"):] + "." + tree.freeNumber(region)
	dir := "bus/namespace" + number
	if wrong == loseSpace {
		dir = "lost/namespace" + number
	}
	name := o["name"]
	if wrong == wrongName {
		name = "somebody-elses"
	}
	for attribute, value := range map[string]string{"uuid": o["uuid"], "alt_name": name, "size": o["size"], "numa_node": tree.read("bus/" + region + "/numa_node"),
		"resource": fmt.Sprintf("%#x", tree.number("bus/"+region+"/resource")+offset), "mode": "raw"} {
		tree.write(dir+"/"+attribute, value)
	}
	tree.account(region)
	switch wrong {
	case half, loseSpace:
		fmt.Fprintln(os.Stderr, "failed to create namespace: No such device or address")
		return 1
	case halfAndHang:
		time.Sleep(time.Hour)
	}
	tree.enable(number, Mode(o["mode"]), size, wrong)
	if wrong == lieFailure {
		fmt.Fprintln(os.Stderr, "failed")
		return 1
	}
	return 0
}

// enable adds the claim and the device, as the kernel does last.
func (tree fakeTree) enable(number string, mode Mode, raw uint64, wrong misbehaviour) {
	class := map[Mode]string{DevDax: "dax", FSDax: "pfn", Sector: "btt"}[mode]
	claim, usable := "bus/"+class+number, UsableSize(mode, raw)
	if wrong == tooSmall {
		usable -= 2 << 20
	}
	device, kind, size := "pmem"+number, "b", strconv.FormatUint(usable/badblockUnit, 10)
	dir := claim + "/block/" + device
	if mode == DevDax {
		device, kind, size = "dax"+number, "c", strconv.FormatUint(usable, 10)
		dir = claim + "/" + device
	}
	tree.write(claim+"/namespace", "namespace"+number)
	tree.write(claim+"/driver", "")
	tree.write(dir+"/size", size)
	tree.write(dir+"/dev", "259:"+strings.ReplaceAll(number, ".", ""))
	if wrong != noDeviceNode {
		tree.write("nodes/"+device, kind+" 259:"+strings.ReplaceAll(number, ".", ""))
	}
}

func (tree fakeTree) freeNumber(region string) string {
	for i := 0; ; i++ {
		if _, err := os.Stat(tree.path(fmt.Sprintf("bus/namespace%s.%d", region[len("region"):], i))); err != nil {
			return strconv.Itoa(i)
		}
	}
}

func (tree fakeTree) destroyNamespace(dev string, wrong misbehaviour) int {
	number := strings.TrimPrefix(dev, "namespace")
	if wrong == becomeInUse {
		tree.write("used/"+tree.read("bus/"+dev+"/alt_name"), "")
		fmt.Fprintln(os.Stderr, "error destroying namespaces: Device or resource busy")
		return 1
	}
	for _, class := range []string{"dax", "pfn", "btt"} {
		_ = os.RemoveAll(tree.path("bus/" + class + number))
	}
	switch wrong {
	case half:
		return 1
	case halfAndHang:
		time.Sleep(time.Hour)
	}
	_ = os.RemoveAll(tree.path("bus/" + dev))
	region, _, _ := strings.Cut(number, ".")
	tree.account("region" + region)
	if wrong == lieFailure {
		return 1
	}
	return 0
}

// hangWithHelper leaves a process behind that would keep the pipes open if the
// whole group were not killed.
func (tree fakeTree) hangWithHelper() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	tree.misbehave(nothing)
	_, err = os.StartProcess("/bin/sleep", []string{"sleep", "3600"}, &os.ProcAttr{Files: []*os.File{null, os.Stdout, os.Stderr}})
	if err != nil {
		panic(err)
	}
	time.Sleep(time.Hour)
}
