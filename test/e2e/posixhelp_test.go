package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// describe is what line says of each name below dir, a line each.
func describe(t *testing.T, dir string, line func(name, rel string, st *unix.Stat_t) (string, error)) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		text, err := line(name, rel, &st)
		lines = append(lines, text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// describeTree is one line for each name below dir.
func describeTree(t *testing.T, dir string) string {
	t.Helper()
	return describe(t, dir, func(name, _ string, st *unix.Stat_t) (string, error) {
		target, _ := os.Readlink(name)
		return fmt.Sprintf("%q mode %o nlink %d uid %d gid %d rdev %d size %d blocks %d mtime %d.%d ctime %d.%d -> %q xattr %s",
			name, st.Mode, st.Nlink, st.Uid, st.Gid, st.Rdev, st.Size, st.Blocks, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec,
			target, listXattrs(name)), nil
	})
}

func listXattrs(name string) string {
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(name, list)
	if err != nil {
		return err.Error()
	}
	names := strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00")
	slices.Sort(names)
	return strings.Join(names, ",")
}

func firstDifference(a, b string) string {
	la, lb := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(la), len(lb)) {
		if la[i] != lb[i] {
			return "before " + la[i] + "\nafter  " + lb[i]
		}
	}
	return fmt.Sprintf("%d names before, %d after", len(la), len(lb))
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantFile(t *testing.T, name, content string) {
	t.Helper()
	if got, err := os.ReadFile(name); err != nil || string(got) != content {
		t.Errorf("%s holds %.60q (%d bytes), %v; want %.60q (%d bytes)", name, got, len(got), err, content, len(content))
	}
}

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func stat(t *testing.T, name string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		t.Fatalf("lstat %s: %v", name, err)
	}
	return st
}

func check(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}
