package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rule is a row of the table of POSIX rules: what one operation does. Its
// members are written in the language of posixverbs_test.go; steps are
// separated by semicolons, and made by root where they name no other user.
type rule struct {
	name  string
	given string // steps before the operation
	do    string // the operation
	// want is the outcome: ok, a result, or an error number. Where Linux FUSE
	// itself decides otherwise, " / " separates the outcome there from that on
	// ext4; four outcomes are those of ext4 and of the three cache modes.
	want string
	// times are the time stamps that change: "f:mc" says that of file f those
	// of modification and of change do, "f:new" that f was made. Capital
	// letters stand for a value other than the present. What is not named
	// keeps all its times, to the nanosecond. Several outcomes are separated
	// as those of want are; "none" is none of several.
	times string
	// links are the link counts that change. What is not named keeps its own,
	// and what is new has 1, a directory 2.
	links string
	// then are steps that follow, "step = outcome", or "step" for ok.
	then string
}

// ruleSets are the parts of the table.
var ruleSets = []struct {
	name  string
	rules []rule
}{
	{"create", createRules},
	{"open", openRules},
	{"links", linkRules},
	{"remove", removeRules},
	{"rename", renameRules},
	{"data", dataRules},
	{"space", spaceRules},
	{"mappings", mappingRules},
	{"attributes", attributeRules},
	{"times", timeRules},
	{"permissions", permissionRules},
	{"set-ID", setIDRules},
	{"xattrs", xattrRules},
	{"ACLs", aclRules},
	{"locks", lockRules},
	{"handles", handleRules},
}

// posixFS is a mounted filesystem that the table is tried on.
type posixFS struct {
	name  string
	dir   string
	index int // of its outcome in a rule
	cast  cast
	count int // directories made
}

// mountModes are the ways to mount that applications might tell apart.
var mountModes = []struct {
	name, options string
	index         int // of the outcome in a rule of the table
}{
	{"through", "cache=through", 1},
	{"direct", "cache=direct", 2},
	{"writeback", "cache=writeback", 3},
	{"uring", "cache=through,transport=uring", 1},
}

// TestPOSIX tries the table and the cases on ext4 and on NVFS in each cache
// mode. A rule that ext4 breaks is a mistake in the table; one that NVFS breaks
// is a mistake in NVFS. Whatever a rule leaves behind must be the same on both.
func TestPOSIX(t *testing.T) {
	actors := newCast(t)
	ext4 := &posixFS{name: "ext4", dir: mountExt4(t), cast: actors}
	reference := map[string]observation{}
	t.Run("ext4", func(t *testing.T) {
		runPOSIX(t, ext4, nil, reference)
	})
	for _, mode := range mountModes {
		t.Run(mode.name, func(t *testing.T) {
			v := newVolume(t, 1<<30)
			openToAll(t, filepath.Dir(v.mnt))
			v.mount(t, mode.options)
			openToAll(t, v.mnt)
			runPOSIX(t, &posixFS{name: mode.name, dir: v.mnt, index: mode.index, cast: actors}, ext4, reference)
			before := describeTree(t, v.mnt)
			v.unmount(t)
			v.check(t)
			v.mount(t, mode.options)
			if after := describeTree(t, v.mnt); after != before {
				t.Errorf("the tree changed with a remount:\n%s", firstDifference(before, after))
			}
		})
	}
}

// runPOSIX tries everything on one filesystem. On ext4, ref is nil and the
// observations are kept; a rule that did not run there, because of -run, does
// so when it is compared.
func runPOSIX(t *testing.T, fs, ref *posixFS, reference map[string]observation) {
	for _, set := range ruleSets {
		t.Run(set.name, func(t *testing.T) {
			for _, r := range set.rules {
				key := set.name + ": " + r.name
				got := fs.observe(t, r)
				for _, problem := range got.compare(r, fs.index) {
					t.Errorf("%s (%s): %s", r.name, r.do, problem)
				}
				if ref == nil {
					reference[key] = got
					continue
				}
				want, known := reference[key]
				if !known {
					want = ref.observe(t, r)
					reference[key] = want
				}
				if !strings.Contains(r.want+r.then, " / ") && got.tree != want.tree {
					t.Errorf("%s (%s): what is left differs from ext4 (before: ext4, after: NVFS):\n%s", r.name, r.do, firstDifference(want.tree, got.tree))
				}
			}
			fs.leave(t)
		})
	}
	for _, c := range posixCases {
		t.Run(c.name, func(t *testing.T) { c.run(t, fs.newDir(t)) })
	}
}

// mountExt4 makes an ext4 on a loop device over memory.
func mountExt4(t *testing.T) string {
	t.Helper()
	dir := memoryDir(t)
	openToAll(t, dir)
	image, mnt := sparse(t, filepath.Join(dir, "image"), 1<<30), filepath.Join(dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	// ea_inode: attributes of more than a block.
	must(t, "mkfs.ext4", "-q", "-F", "-O", "ea_inode", image)
	must(t, "mount", "-t", "ext4", "-o", "loop,noatime,acl,user_xattr", image, mnt)
	t.Cleanup(func() { must(t, "umount", mnt) })
	return mnt
}

// openToAll lets every user through a directory.
func openToAll(t *testing.T, dir string) {
	t.Helper()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// newDir is an empty directory that everybody may write to.
func (fs *posixFS) newDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(fs.dir, fmt.Sprintf("%03d", fs.count))
	fs.count++
	if err := errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// leave brings the actors out of the filesystem.
func (fs *posixFS) leave(t *testing.T) {
	t.Helper()
	if err := fs.cast.enter("/"); err != nil {
		t.Fatal(err)
	}
}

// observation is what a rule did on a filesystem.
type observation struct {
	failed       string // a step of given that failed
	want         string
	times, links string
	then         []string
	tree         string // what is there afterwards, times apart
}

// observe tries a rule in a directory of its own.
func (fs *posixFS) observe(t *testing.T, r rule) (o observation) {
	t.Helper()
	dir := fs.newDir(t)
	if err := fs.cast.enter(dir); err != nil {
		t.Fatal(err)
	}
	if err := fs.cast.steps(r.given); err != nil {
		o.failed = err.Error()
		return o
	}
	before := takeSnapshot(t, dir)
	start := nextTick()
	o.want = fs.cast.step(r.do)
	end := realTime()
	after := takeSnapshot(t, dir)
	o.times, o.links = before.changes(after, start, end)
	for s := range strings.SplitSeq(r.then, ";") {
		if text, _, _ := strings.Cut(s, " = "); strings.TrimSpace(text) != "" {
			o.then = append(o.then, fs.cast.step(text))
		}
	}
	o.tree = describeContent(t, dir)
	return o
}

// outcomeFor picks the outcome for a filesystem.
func outcomeFor(text string, index int) string {
	all := strings.Split(text, " / ")
	switch {
	case len(all) == 1 || index == 0:
		index = 0
	case len(all) == 2:
		index = 1
	}
	return strings.TrimSpace(all[index])
}

// compare lists in what the observation differs from the rule.
func (o observation) compare(r rule, index int) []string {
	if o.failed != "" {
		return []string{"before the operation: " + o.failed}
	}
	var problems []string
	differs := func(what, got, want string) {
		if got != want {
			problems = append(problems, fmt.Sprintf("%s: %q, want %q", what, got, want))
		}
	}
	want := outcomeFor(r.want, index)
	differs("outcome", o.want, want)
	times, links := outcomeFor(r.times, index), r.links
	if strings.HasPrefix(want, "E") {
		times, links = "", "" // nothing happened
	}
	differs("times that changed", o.times, sortedFields(times))
	differs("link counts that changed", o.links, sortedFields(links))
	i := 0
	for s := range strings.SplitSeq(r.then, ";") {
		text, wanted, given := strings.Cut(s, " = ")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if !given {
			wanted = "ok"
		}
		differs("then "+text, o.then[i], outcomeFor(wanted, index))
		i++
	}
	return problems
}

func sortedFields(s string) string {
	if s == "none" {
		return ""
	}
	return strings.Join(slices.Sorted(slices.Values(strings.Fields(expand(s)))), " ")
}

// realTime is the clock's finest reading.
func realTime() time.Time { return clock(unix.CLOCK_REALTIME) }

func clock(id int32) time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(err)
	}
	return time.Unix(ts.Unix())
}

// nextTick waits until the clock that the kernel takes time stamps from has
// moved past the present, so that a stamp made afterwards is a later one, and
// returns its reading.
func nextTick() time.Time {
	begin := realTime()
	for {
		if now := clock(unix.CLOCK_REALTIME_COARSE); now.After(begin) {
			return now
		}
		time.Sleep(500 * time.Microsecond)
	}
}

// stamps are the times of an inode by letter.
type stamps map[byte]time.Time

type inodeState struct {
	path  string
	dir   bool
	nlink uint32
	times stamps
}

// snapshot is the state of a tree by inode number. An inode with several
// names has the first of them.
type snapshot map[uint64]inodeState

func takeSnapshot(t *testing.T, dir string) snapshot {
	t.Helper()
	s := snapshot{}
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
			return err
		}
		if _, seen := s[st.Ino]; seen {
			return nil
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		at := func(ts unix.StatxTimestamp) time.Time { return time.Unix(ts.Sec, int64(ts.Nsec)) }
		s[st.Ino] = inodeState{rel, st.Mode&unix.S_IFMT == unix.S_IFDIR, st.Nlink,
			stamps{'a': at(st.Atime), 'm': at(st.Mtime), 'c': at(st.Ctime), 'b': at(st.Btime)}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// changes describes how times and link counts in after differ from those in s,
// in the form that rules have.
func (s snapshot) changes(after snapshot, start, end time.Time) (times, links string) {
	var ts, ls []string
	for ino, now := range after {
		was, existed := s[ino]
		if !existed {
			was.nlink = 1
			if now.dir {
				was.nlink = 2
			}
		}
		if letters := changedStamps(was.times, now.times, start, end); letters != "" {
			ts = append(ts, now.path+":"+letters)
		}
		if now.nlink != was.nlink {
			ls = append(ls, now.path+"="+strconv.Itoa(int(now.nlink)))
		}
	}
	slices.Sort(ts)
	slices.Sort(ls)
	return strings.Join(ts, " "), strings.Join(ls, " ")
}

// changedStamps names the times that changed: in lower case those that became
// the present, of which all must be one value.
func changedStamps(was, now stamps, start, end time.Time) string {
	out, present := "", time.Time{}
	for _, letter := range []byte("amcb") {
		v := now[letter]
		switch {
		case v.Equal(was[letter]):
			continue
		case v.Before(start) || v.After(end):
			out += strings.ToUpper(string(letter))
			continue
		case !present.IsZero() && !v.Equal(present):
			out += "!" // not the moment of the others
		}
		present = v
		out += string(letter)
	}
	if was == nil && out == "amcb" {
		return "new"
	}
	return out
}

// describeContent is one line for each name below dir, without what differs
// from run to run.
func describeContent(t *testing.T, dir string) string {
	t.Helper()
	return describe(t, dir, func(name, rel string, st *unix.Stat_t) (string, error) {
		content := ""
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			st.Size = 0 // each filesystem has its own idea
		case unix.S_IFLNK:
			content, _ = os.Readlink(name)
		case unix.S_IFREG:
			if st.Size < 8<<20 {
				all, err := os.ReadFile(name)
				if err != nil {
					return "", err
				}
				content = runs(all)
			}
		}
		return fmt.Sprintf("%s: mode %o links %d owner %d:%d rdev %d size %d content %s attributes %s",
			rel, st.Mode, st.Nlink, st.Uid, st.Gid, st.Rdev, st.Size, content, describeXattrs(name)), nil
	})
}

// describeXattrs is all attributes of a file with their values.
func describeXattrs(name string) string {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(name, list)
	if err != nil {
		return err.Error()
	}
	values := map[string]string{}
	for key := range strings.SplitSeq(string(list[:n]), "\x00") {
		if key == "" {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(name, key, value)
		if err != nil {
			values[key] = err.Error()
			continue
		}
		values[key] = fmt.Sprintf("%x", value[:min(n, 64)]) + fmt.Sprintf("(%d)", n)
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		out = append(out, key+"="+values[key])
	}
	return strings.Join(out, ",")
}
