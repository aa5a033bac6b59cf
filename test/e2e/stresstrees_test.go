package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// makeZoo fills a directory with everything that an archive has to keep: all
// types of files, odd names, links, holes, owners, modes, times, attributes,
// capabilities and ACLs.
func makeZoo(t *testing.T, dir string) {
	t.Helper()
	c := newCast(t)
	if err := c.enter(dir); err != nil {
		t.Fatal(err)
	}
	err := c.steps(`
		mkdir d 755; mkdir d/e 2775; mkdir sticky 777; chmod sticky 1777; mkdir empty 700;
		put f hello; chmod f 640; chown f alice staff; utimens f 1000000000.123456789 1100000000.987654321;
		put d/inline {x:300}; put d/block {y:4096}; put d/odd {z:70001};
		link f d/f2; link f d/e/f3; symlink f l; symlink {t:4000} d/long; symlink nowhere dangling; chown l bob bob;
		mknod p fifo 644; mknod s sock 755; mknod c chr 660 1,3; mknod b blk 600 7,200;
		program d/run id; chown d/run alice staff; chmod d/run 6755; program d/cap id; setcap d/cap;
		put x attributes; setxattr x user.a 1; setxattr x user.b {v:2000}; setxattr x trusted.t 2; setxattr d user.dir yes;
		put acl text; setacl acl access u::rw-,u:alice:rwx,g::r--,g:staff:-w-,m::rwx,o::---;
		setacl d/e default u::rwx,u:bob:r-x,g::r-x,m::r-x,o::---; creat d/e/inherits 666;
		open @s sparse creat,rw 644; pwrite @s 0 begin; pwrite @s 5M middle; pwrite @s 9M end; close @s;
		open @s hole creat,rw 600; truncate @s 5M; close @s;
		put {n:255} long; put ünïcödé 1; put -dash 2; mkdir ... 711; chmod x 0;
		chown d/e bob staff; utimens d/e 5.5 6.000000006; utimens l 7.7 8.000000008; utimens d 9.9 1.000000001`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.enter("/"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new\nline", " space ", "\x01\xff\xfe", "back\\slash", "quo'te\""} {
		write(t, filepath.Join(dir, name), name)
	}
}

// describeCopy is one line for each name below dir, with all that a copy must
// keep.
func describeCopy(t *testing.T, dir string) string {
	t.Helper()
	links := map[uint64]string{}
	return describe(t, dir, func(name, rel string, st *unix.Stat_t) (string, error) {
		if links[st.Ino] == "" {
			links[st.Ino] = rel
		}
		size := st.Size
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			size = 0
		}
		content, err := contentOf(name, st)
		return fmt.Sprintf("%q is %q: mode %o links %d owner %d:%d rdev %d size %d modified %d.%09d content %s attributes %s",
			rel, links[st.Ino], st.Mode, st.Nlink, st.Uid, st.Gid, st.Rdev, size, st.Mtim.Sec, st.Mtim.Nsec, content, describeXattrs(name)), err
	})
}

func contentOf(name string, st *unix.Stat_t) (string, error) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return os.Readlink(name)
	case unix.S_IFREG:
		all, err := os.ReadFile(name)
		return fmt.Sprintf("%x %s", fnv(all), runs(all[:min(len(all), 40)])), err
	}
	return "", nil
}

// fnv is a checksum (FNV-1a, 64 bits).
func fnv(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// makeOld gives everything that is new in a tree, whatever its type, an old
// time. rsync takes times within one second for equal, and would leave those of
// a copy as they are that is made at once.
func makeOld(t *testing.T, dir string) {
	t.Helper()
	old := unix.Timespec{Sec: 1000000000, Nsec: 123456789}
	recent := time.Now().Add(-time.Hour).Unix()
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if err != nil || stat(t, name).Mtim.Sec < recent {
			return err
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{old, old}, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestStressArchives takes a tree with everything in it through tar and rsync,
// from ext4 to NVFS, within NVFS and back, and compares.
func TestStressArchives(t *testing.T) {
	ext4 := mountExt4(t)
	source := filepath.Join(ext4, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	makeZoo(t, source)
	makeOld(t, source)
	want := describeCopy(t, source)
	eachMode(t, 512<<20, func(t *testing.T, v testVolume, mount func()) {
		back, err := os.MkdirTemp(ext4, "back-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(back)
		equal := func(what, dir string) {
			t.Helper()
			if got := describeCopy(t, dir); got != want {
				t.Errorf("%s: the copy is not the source (before: source, after: copy):\n%s", what, firstDifference(want, got))
			}
		}
		tar := func(from, to string) {
			t.Helper()
			archive := filepath.Join(filepath.Dir(v.mnt), "archive.tar")
			defer os.Remove(archive)
			if err := os.MkdirAll(to, 0o755); err != nil {
				t.Fatal(err)
			}
			// Sockets have no place in an archive.
			must(t, "tar", "-C", from, "--format=posix", "--acls", "--xattrs", "--xattrs-include=*", "--sparse", "--numeric-owner", "--warning=no-file-ignored", "-cf", archive, ".")
			must(t, "tar", "-C", to, "--acls", "--xattrs", "--xattrs-include=*", "--sparse", "--numeric-owner", "--same-owner", "-pxf", archive)
			must(t, "rsync", "-aHAX", "--numeric-ids", "--include=s", "--include=*/", "--exclude=*", from+"/", to+"/")
			must(t, "rsync", "-aHAX", "--numeric-ids", "--existing", from+"/", to+"/")
		}
		rsync := func(from, to string) {
			t.Helper()
			must(t, "rsync", "-aHAXS", "--numeric-ids", from+"/", to+"/")
		}
		rsync(source, v.path("rsync"))
		equal("rsync from ext4", v.path("rsync"))
		tar(source, v.path("tar"))
		equal("tar from ext4", v.path("tar"))
		must(t, "cp", "-a", v.path("rsync"), v.path("cp"))
		equal("cp -a within NVFS", v.path("cp"))
		tar(v.path("cp"), v.path("tar2"))
		equal("tar within NVFS", v.path("tar2"))
		rsync(v.path("tar2"), filepath.Join(back, "rsync"))
		equal("rsync to ext4", filepath.Join(back, "rsync"))
		tar(v.path("rsync"), filepath.Join(back, "tar"))
		equal("tar to ext4", filepath.Join(back, "tar"))
		for _, copy := range []string{"rsync", "tar", "cp", "tar2"} {
			for name, size := range map[string]int64{"sparse": 1 << 20, "hole": 0} {
				if st := stat(t, v.path(copy, name)); st.Blocks*512 > size {
					t.Errorf("%s/%s takes %d bytes: the holes are filled", copy, name, st.Blocks*512)
				}
			}
		}
		v.unmount(t)
		v.check(t)
		mount()
		for _, copy := range []string{"rsync", "tar", "cp", "tar2"} {
			equal(copy+" after a remount", v.path(copy))
		}
	})
}

// git runs Git without the configuration of whoever runs the tests.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	all := append([]string{"-C", dir, "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main", "-c", "gc.auto=0",
		"-c", "core.fsync=all", "-c", "safe.directory=*"}, args...)
	return must(t, "git", all...).stdout
}

// TestStressGit makes a repository with a history, clones it, goes through its
// versions, collects garbage and checks.
func TestStressGit(t *testing.T) {
	eachMode(t, 1<<30, func(t *testing.T, v testVolume, mount func()) {
		repo := v.mkdir(t, "repo")
		git(t, repo, "init", "-q")
		r := rand.New(rand.NewPCG(seed(t), 3))
		versions := map[string]string{} // commit to what the tree held
		for i := range scale(6, 200) {
			changeFiles(t, repo, r, scale(40, 300))
			git(t, repo, "add", "-A")
			git(t, repo, "commit", "-q", "-m", fmt.Sprint("version ", i))
			versions[strings.TrimSpace(git(t, repo, "rev-parse", "HEAD"))] = describeWorkTree(t, repo)
			if i%3 == 0 {
				git(t, repo, "branch", fmt.Sprint("branch-", i))
			}
		}
		git(t, repo, "gc", "-q", "--prune=now")
		git(t, repo, "fsck", "--full", "--strict")
		git(t, v.mnt, "clone", "-q", "repo", "linked")
		git(t, v.mnt, "clone", "-q", "--no-local", "repo", "copied")
		for _, clone := range []string{"repo", "linked", "copied"} {
			for _, commit := range slices.Sorted(maps.Keys(versions)) {
				git(t, v.path(clone), "checkout", "-q", commit)
				if got := describeWorkTree(t, v.path(clone)); got != versions[commit] {
					t.Errorf("%s at %s:\n%s", clone, commit, firstDifference(versions[commit], got))
				}
			}
			if out := git(t, v.path(clone), "status", "--porcelain"); out != "" {
				t.Errorf("%s: status says\n%s", clone, out)
			}
		}
		git(t, v.path("copied"), "repack", "-q", "-a", "-d", "-f")
		v.unmount(t)
		v.check(t)
		mount()
		for _, clone := range []string{"repo", "linked", "copied"} {
			git(t, v.path(clone), "fsck", "--full", "--strict")
		}
	})
}

// changeFiles makes, changes, moves and removes files.
func changeFiles(t *testing.T, dir string, r *rand.Rand, count int) {
	t.Helper()
	for range count {
		name := filepath.Join(dir, fmt.Sprintf("dir-%d", r.IntN(10)), fmt.Sprintf("file-%d", r.IntN(50)))
		other := filepath.Join(dir, fmt.Sprintf("dir-%d", r.IntN(10)), fmt.Sprintf("file-%d", r.IntN(50)))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.MkdirAll(filepath.Dir(other), 0o755)); err != nil {
			t.Fatal(err)
		}
		switch r.IntN(6) {
		case 0:
			os.Remove(name) // if it is there
		case 1:
			os.Rename(name, other)
		case 2:
			os.Remove(name)
			check(t, "symlink", os.Symlink(filepath.Base(other), name))
		default:
			os.Remove(name)
			lines := strings.Repeat(fmt.Sprintf("line %d\n", r.IntN(1000)), r.IntN(2000))
			check(t, "write", os.WriteFile(name, []byte(lines), []os.FileMode{0o644, 0o755}[r.IntN(2)]))
		}
	}
}

// describeWorkTree is what Git keeps of the files in a work tree.
func describeWorkTree(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if e.Name() == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		st := stat(t, name)
		content, err := contentOf(name, &st)
		rel, _ := filepath.Rel(dir, name)
		lines = append(lines, fmt.Sprintf("%s %o %s", rel, st.Mode, content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
