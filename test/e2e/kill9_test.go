package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// killsWanted is how often each of the tests below kills the serving process:
// NVFS_E2E_KILLS in all, or a few.
func killsWanted(t *testing.T) int {
	t.Helper()
	text := os.Getenv("NVFS_E2E_KILLS")
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 {
		t.Fatalf("NVFS_E2E_KILLS=%q is no number from 2 on", text)
	}
	return n / 2
}

// reached waits until a count is as high as wanted, for as long as it grows:
// how fast it does says nothing.
func reached(t *testing.T, what string, want int64, count func() int64) {
	t.Helper()
	last, since := count(), time.Now()
	for last < want {
		time.Sleep(10 * time.Millisecond)
		if n := count(); n != last {
			last, since = n, time.Now()
		} else if time.Since(since) > settleTimeout {
			t.Fatalf("%s: they stand still at %d of %d for %s", what, last, want, settleTimeout)
		}
	}
}

// remount takes a volume whose server was killed through check, mount with
// its recovery, and check again while nothing is mounted.
func (v testVolume) remount(t *testing.T) {
	t.Helper()
	v.check(t) // sound with the journal's records
	mustNVFS(t, "mount", "-o", "emulated", v.device, v.mnt)
	v.unmount(t)
	v.check(t)
	mustNVFS(t, "mount", "-o", "emulated", v.device, v.mnt)
}

// TestKillUnderFio kills the serving process while fio appends blocks with
// checksums to a file. Every block that fio was told of is there, and all are
// whole.
func TestKillUnderFio(t *testing.T) {
	v := newVolume(t, 512<<20)
	v.mount(t)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range killsWanted(t) {
		dir := v.path(fmt.Sprintf("round %d", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "job.0.0")
		acknowledged := appendUntilKilled(t, v, dir, file, int64(50+r.IntN(2000))*4096)
		v.remount(t)
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() < acknowledged || info.Size() > acknowledged+4096 || info.Size()%4096 != 0 {
			t.Errorf("round %d: the file has %d bytes; %d were acknowledged", i, info.Size(), acknowledged)
		}
		must(t, "fio", fioVerifyArgs(dir, "read", info.Size())...)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func fioVerifyArgs(dir, rw string, size int64) []string {
	return []string{"--name=job", "--directory=" + dir, "--rw=" + rw, "--bs=4096", "--size=" + strconv.FormatInt(size, 10),
		"--ioengine=psync", "--fallocate=none", "--verify=crc32c", "--verify_fatal=1", "--do_verify=0", "--randrepeat=1",
		"--verify_state_save=0", "--output-format=terse", "--terse-version=3"}
}

// appendUntilKilled lets fio append to file until that has a size, and then
// kills the serving process. It returns how many bytes fio had written by its
// own account.
func appendUntilKilled(t *testing.T, v testVolume, dir, file string, size int64) int64 {
	t.Helper()
	trace := filepath.Join(filepath.Dir(v.mnt), "fio-log")
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "fio", append(fioVerifyArgs(dir, "write", 256<<20), "--write_lat_log="+trace, "--log_offset=1")...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &out, filepath.Dir(v.mnt)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := v.server(t)
	reached(t, "bytes that fio has written", size, func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	})
	v.crashServer(t, pid)
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Fatalf("fio ended with %v although its filesystem was gone\n%s", err, out.String())
	}
	// A line for each write that was answered without an error.
	log, err := os.ReadFile(trace + "_clat.1.log")
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	logs, err := filepath.Glob(trace + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range logs {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	acknowledged := int64(bytes.Count(log, []byte("\n"))) * 4096
	if acknowledged < size-4096 { // the last one may not have been answered
		t.Fatalf("fio knows of %d bytes, but the file had %d", acknowledged, size)
	}
	return acknowledged
}

// TestKillUnderStorm kills the serving process while several clients change
// names, links, contents and sizes, each in a directory of its own and each
// with a model of what it was told. Whatever was acknowledged is there; of the
// one operation that was under way, all or nothing.
func TestKillUnderStorm(t *testing.T) {
	const clients = 3
	v := newVolume(t, 512<<20)
	v.mount(t)
	var storms []*storm
	for i := range clients {
		s := &storm{dir: v.path(fmt.Sprintf("client %d", i)), r: rand.New(rand.NewPCG(uint64(i), 77)), model: model{}}
		if err := os.Mkdir(s.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		storms = append(storms, s)
	}
	r := rand.New(rand.NewPCG(5, 5))
	total := int64(0)
	for round := range killsWanted(t) {
		var done atomic.Int64
		var wg sync.WaitGroup
		for _, s := range storms {
			wg.Go(func() { s.run(&done) })
		}
		pid, until := v.server(t), int64(300+r.IntN(3000))
		reached(t, "operations of the clients", until, done.Load)
		v.crashServer(t, pid)
		wg.Wait()
		total += done.Load()
		v.remount(t)
		for i, s := range storms {
			if err := s.settle(); err != nil {
				t.Fatalf("round %d, client %d: %v", round, i, err)
			}
		}
	}
	t.Logf("%d operations were acknowledged", total)
}

// inode is a file of the model; names that are links share it.
type inode struct {
	dir     bool
	content []byte
}

// model is what a directory holds, by name.
type model map[string]*inode

// clone copies a model, so that an operation can be tried on it.
func (m model) clone() model {
	seen := map[*inode]*inode{}
	c := model{}
	for name, n := range m {
		if seen[n] == nil {
			seen[n] = &inode{dir: n.dir, content: slices.Clone(n.content)}
		}
		c[name] = seen[n]
	}
	return c
}

// storm is a client, with what it knows and what it was doing when the
// server went away.
type storm struct {
	dir     string
	r       *rand.Rand
	model   model
	pending func(m model)
	err     error
}

// run does operations until one fails.
func (s *storm) run(done *atomic.Int64) {
	for {
		do, apply := s.next()
		if do == nil {
			continue
		}
		if err := do(); err != nil {
			s.pending, s.err = apply, err
			return
		}
		apply(s.model)
		done.Add(1)
	}
}

func (s *storm) path(name string) string { return filepath.Join(s.dir, name) }

// pick is a name that exists, "" when there is none of the kind.
func (s *storm) pick(dir bool) string {
	var names []string
	for name, n := range s.model {
		if n.dir == dir {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return names[s.r.IntN(len(names))]
}

// unused is a name that does not exist.
func (s *storm) unused() string {
	for {
		name := fmt.Sprintf("name %0*d", 1+s.r.IntN(40), s.r.IntN(500))
		if s.model[name] == nil {
			return name
		}
	}
}

// crowd is how many names a client has at most in its directory, so that no
// round takes longer than the one before.
const crowd = 150

// next chooses an operation of one system call on names that allow it: what
// to do, and what it changes. do is nil when there is nothing to do it to.
func (s *storm) next() (do func() error, apply func(model)) {
	file, dir, name := s.pick(false), s.pick(true), s.unused()
	kind := s.r.IntN(20)
	if len(s.model) > crowd {
		kind = 10 // unlink
		if dir != "" && s.r.IntN(3) == 0 {
			kind = 18 // rmdir
		}
	}
	if file == "" || kind < 5 {
		return func() error { return mknod(s.path(name)) }, func(m model) { m[name] = &inode{} }
	} else if kind < 10 {
		return s.appendTo(file)
	} else if kind < 12 {
		return func() error { return unix.Unlink(s.path(file)) }, func(m model) { delete(m, file) }
	} else if kind < 14 {
		return func() error { return unix.Rename(s.path(file), s.path(name)) }, func(m model) { m[name] = m[file]; delete(m, file) }
	} else if kind < 15 {
		other := s.pick(false)
		if s.model[other] == s.model[file] { // one file, two names: rename does nothing
			return nil, nil
		}
		return func() error { return unix.Rename(s.path(file), s.path(other)) }, func(m model) { m[other] = m[file]; delete(m, file) }
	} else if kind < 16 {
		return func() error { return unix.Link(s.path(file), s.path(name)) }, func(m model) { m[name] = m[file] }
	} else if kind < 17 {
		return s.truncate(file)
	} else if kind < 18 || dir == "" {
		return func() error { return unix.Mkdir(s.path(name), 0o700) }, func(m model) { m[name] = &inode{dir: true} }
	} else if kind < 19 {
		return func() error { return unix.Rmdir(s.path(dir)) }, func(m model) { delete(m, dir) }
	}
	return func() error {
			return unix.Renameat2(unix.AT_FDCWD, s.path(file), unix.AT_FDCWD, s.path(dir), unix.RENAME_EXCHANGE)
		},
		func(m model) { m[file], m[dir] = m[dir], m[file] }
}

func mknod(path string) error { return unix.Mknod(path, unix.S_IFREG|0o600, 0) }

// appendTo writes behind the end of a file: the size and the content change
// together. The kernel may send a write in parts; each that was acknowledged
// is there for good.
func (s *storm) appendTo(name string) (func() error, func(model)) {
	p := make([]byte, 1+s.r.IntN(9000))
	for i := range p {
		p[i] = byte(s.r.Uint32())
	}
	off := len(s.model[name].content)
	done := 0
	extend := func(m model, to int) {
		m[name].content = slices.Concat(m[name].content[:off], p[:to])
	}
	return func() error {
		fd, err := unix.Open(s.path(name), unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		for done < len(p) && err == nil {
			var n int
			if n, err = unix.Pwrite(fd, p[done:], int64(off+done)); err == nil {
				done += n
				extend(s.model, done)
			}
		}
		// What close says does not matter: the write was acknowledged.
		_ = unix.Close(fd)
		return err
	}, func(m model) { extend(m, len(p)) }
}

func (s *storm) truncate(name string) (func() error, func(model)) {
	size := s.r.IntN(2*len(s.model[name].content) + 1)
	return func() error { return unix.Truncate(s.path(name), int64(size)) }, func(m model) {
		old := m[name].content
		m[name].content = append(slices.Clone(old[:min(size, len(old))]), make([]byte, max(0, size-len(old)))...)
	}
}

// settle compares the directory with the model, before or after the operation
// that was under way, and takes on what it finds.
func (s *storm) settle() error {
	if !errors.Is(s.err, unix.ENOTCONN) && !errors.Is(s.err, unix.ECONNABORTED) {
		return fmt.Errorf("an operation failed before the server did: %w", s.err)
	}
	after := s.model.clone()
	s.pending(after)
	errBefore := s.compare(s.model)
	if errBefore == nil {
		return nil
	}
	if err := s.compare(after); err != nil {
		return fmt.Errorf("neither as before the last operation (%w) nor as after it (%w)", errBefore, err)
	}
	s.model = after
	return nil
}

func (s *storm) compare(m model) error {
	list, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	if want := slices.Sorted(maps.Keys(m)); !slices.Equal(names, want) {
		return fmt.Errorf("names are %q, want %q", names, want)
	}
	links := map[*inode]os.FileInfo{}
	for name, n := range m {
		if err := s.compareFile(name, n, links); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

func (s *storm) compareFile(name string, n *inode, links map[*inode]os.FileInfo) error {
	info, err := os.Lstat(s.path(name))
	if err != nil {
		return err
	}
	if info.IsDir() != n.dir {
		return fmt.Errorf("mode %v", info.Mode())
	}
	if n.dir {
		return emptyDir(s.path(name))
	}
	if first := links[n]; first != nil && !os.SameFile(first, info) {
		return errors.New("it is no link any more")
	}
	links[n] = info
	got, err := os.ReadFile(s.path(name))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, n.content) {
		return fmt.Errorf("%d bytes that differ from the %d written", len(got), len(n.content))
	}
	return nil
}

func emptyDir(path string) error {
	list, err := os.ReadDir(path)
	if err == nil && len(list) > 0 {
		err = fmt.Errorf("it has %d names: %w", len(list), fs.ErrExist)
	}
	return err
}
