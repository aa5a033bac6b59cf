package nvfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// testConn is the connection of requests in these tests.
const testConn = 7

// served is a volume with one worker whose requests have numbers.
type served struct {
	*nvfs.Worker
	t       *testing.T
	fs      *nvfs.FS
	space   pmem.Space
	unique  uint64
	orphans []nvfs.NodeID // told by OnOrphan
}

func newServed(t *testing.T) *served {
	t.Helper()
	space := newSpace(16 << 20)
	t.Cleanup(func() {
		if err := lint(space); err != nil {
			t.Error(err)
		}
	})
	format(t, space, mkfs.Options{})
	s := &served{t: t, space: space}
	s.mount(0)
	return s
}

// mount starts a server, which resumes connection conn if that is not 0.
func (s *served) mount(conn uint64) {
	s.t.Helper()
	fs, err := nvfs.Mount(s.space, nvfs.Options{Resume: conn, OnOrphan: func(id nvfs.NodeID) { s.orphans = append(s.orphans, id) }})
	if err != nil {
		s.t.Fatal(err)
	}
	w, err := fs.NewWorker()
	if err != nil {
		s.t.Fatal(err)
	}
	s.fs, s.Worker = fs, w
}

// takeOver ends the server and starts its successor.
func (s *served) takeOver() {
	s.t.Helper()
	s.fs.Detach()
	s.mount(testConn)
}

// request executes f as a request and returns its number.
func (s *served) request(f func() error) (uint64, error) {
	s.unique += 2
	return s.unique, s.as(nvfs.Request{Conn: testConn, Unique: s.unique}, f)
}

// again executes f as a request that is sent again.
func (s *served) again(unique uint64, f func() error) error {
	return s.as(nvfs.Request{Conn: testConn, Unique: unique, Resent: true}, f)
}

func (s *served) as(r nvfs.Request, f func() error) error {
	s.Begin(&r)
	defer s.End()
	return f()
}

func (s *served) must(f func() error) uint64 {
	s.t.Helper()
	n, err := s.request(f)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *served) create(name string) nvfs.NodeID {
	s.t.Helper()
	var a nvfs.Attr
	s.must(func() error {
		return s.Mknod(nvfs.RootID, []byte(name), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0600}, &a)
	})
	return a.ID
}

func (s *served) tmpfile() nvfs.NodeID {
	s.t.Helper()
	var a nvfs.Attr
	s.must(func() error { return s.Tmpfile(nvfs.RootID, &nvfs.CreateArgs{Mode: unix.S_IFREG | 0600}, &a) })
	return a.ID
}

// expectFile expects a file, named or not, with that content.
func (s *served) expectFile(id nvfs.NodeID, content []byte) {
	s.t.Helper()
	have := make([]byte, len(content)+1)
	n, err := s.Read(id, 0, have)
	if err != nil || !bytes.Equal(have[:n], content) {
		s.t.Fatalf("node %#x: %d bytes, %v; want %d bytes", uint64(id), n, err, len(content))
	}
}

func (s *served) expectGone(id nvfs.NodeID) {
	s.t.Helper()
	var a nvfs.Attr
	if err := s.GetAttr(id, &a); !errors.Is(err, syscall.ESTALE) {
		s.t.Fatalf("node %#x: %v, want ESTALE", uint64(id), err)
	}
}

func (s *served) expectOrphans(want ...nvfs.NodeID) {
	s.t.Helper()
	have, err := s.fs.Orphans()
	slices.Sort(have)
	slices.Sort(want)
	if err != nil || !slices.Equal(have, want) {
		s.t.Fatalf("orphans %x, %v; want %x", have, err, want)
	}
}

func (s *served) unmount() {
	s.t.Helper()
	s.Close()
	if err := errors.Join(s.fs.Unmount(), check(s.space)); err != nil {
		s.t.Fatal(err)
	}
	if h := s.fs.Health(); h != "" {
		s.t.Fatal(h)
	}
}

// withOpenFiles makes a deleted file, which is open, and one without a name,
// and takes the connection over.
func withOpenFiles(t *testing.T) (s *served, deleted, temporary nvfs.NodeID, content []byte) {
	s = newServed(t)
	content = data('c', 20000)
	deleted, temporary = s.create("deleted"), s.tmpfile()
	for _, id := range []nvfs.NodeID{deleted, temporary} {
		s.must(func() error { _, err := s.Write(id, 0, content, 0); return err })
	}
	s.must(func() error { return s.Unlink(nvfs.RootID, []byte("deleted")) })
	return s, deleted, temporary, content
}

// Files that are open live on when the server is replaced, until the kernel
// says that it does not refer to them.
func TestResumeKeepsOpenFiles(t *testing.T) {
	s, deleted, temporary, content := withOpenFiles(t)
	s.takeOver()
	if _, err := s.fs.Orphans(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Orphans before EndResume: %v, want EBUSY", err)
	}
	if err := s.fs.ReleaseOrphan(deleted); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("ReleaseOrphan before EndResume: %v, want EBUSY", err)
	}
	s.expectFile(deleted, content)
	s.expectFile(temporary, content)
	for range 2 { // the second time it does nothing
		if err := s.fs.EndResume(); err != nil {
			t.Fatal(err)
		}
	}
	s.expectOrphans(deleted, temporary)

	s.Forget(deleted, 3)
	s.expectFile(deleted, content)
	if !slices.Equal(s.orphans, []nvfs.NodeID{deleted}) {
		t.Errorf("OnOrphan told of %x", s.orphans)
	}
	if err := s.fs.ReleaseOrphan(deleted); err != nil {
		t.Fatal(err)
	}
	s.expectGone(deleted)
	s.expectFile(temporary, content)
	s.expectOrphans(temporary)
	if err := s.fs.ReleaseOrphan(deleted); err != nil { // it is gone
		t.Error(err)
	}

	s.must(func() error { var a nvfs.Attr; return s.Link(temporary, nvfs.RootID, []byte("name"), &a) })
	if err := s.fs.ReleaseOrphan(temporary); err != nil { // it has a name now
		t.Error(err)
	}
	s.expectFile(temporary, content)
	s.expectOrphans()
	s.unmount()
}

// A mount for a new connection, and the end of the one that was resumed, free
// what has no name.
func TestOrphansAreFreedWithoutConnection(t *testing.T) {
	for _, resume := range []bool{false, true} {
		s, deleted, temporary, _ := withOpenFiles(t)
		s.fs.Detach()
		if resume {
			s.mount(testConn)
			s.unmount()
		}
		s.mount(0)
		s.unmount()
		s.mount(0)
		s.expectGone(deleted)
		s.expectGone(temporary)
		s.unmount()
	}
}

// What was looked up before the connection was resumed is not counted: such a
// file is freed when the kernel was asked, one of later when it is forgotten.
func TestLookupsOfResumedConnection(t *testing.T) {
	s := newServed(t)
	old := s.create("old")
	s.takeOver()
	if err := s.fs.EndResume(); err != nil {
		t.Fatal(err)
	}
	var a nvfs.Attr
	if err := s.Lookup(nvfs.RootID, []byte("old"), &a); err != nil {
		t.Fatal(err)
	}
	young := s.create("young")
	for _, name := range []string{"old", "young"} {
		s.must(func() error { return s.Unlink(nvfs.RootID, []byte(name)) })
	}
	s.expectOrphans(old, young)
	if err := s.fs.ReleaseOrphan(young); err != nil { // a lookup is counted
		t.Fatal(err)
	}
	s.expectOrphans(old, young)
	s.Forget(young, 1)
	s.expectGone(young)
	s.Forget(old, 1)
	s.expectOrphans(old)
	s.Forget(old, 1)
	if !slices.Equal(s.orphans, []nvfs.NodeID{old, old}) {
		t.Errorf("OnOrphan told of %x", s.orphans)
	}
	s.unmount()
}

// Only what its connection asked for is an answer, of each worker only the
// last.
func TestWhatIsAnAnswer(t *testing.T) {
	s := newServed(t)
	first := s.must(func() error { var a nvfs.Attr; return s.Mkdir(nvfs.RootID, []byte("a"), &nvfs.CreateArgs{}, &a) })
	s.create("b")
	last := s.must(func() error { return s.Unlink(nvfs.RootID, []byte("b")) })
	failed, err := s.request(func() error { return s.Unlink(nvfs.RootID, []byte("b")) })
	if !errors.Is(err, syscall.ENOENT) {
		t.Fatal(err)
	}
	s.takeOver()
	for unique, want := range map[uint64]bool{first: false, last: true, failed: false} {
		if _, ok := s.fs.Answer(testConn, unique); ok != want {
			t.Errorf("request %d: known %v, want %v", unique, ok, want)
		}
	}
	if _, ok := s.fs.Answer(testConn+1, last); ok {
		t.Error("a request of another connection is known")
	}
	unlink := func() error { return s.Unlink(nvfs.RootID, []byte("b")) }
	if err := s.again(last, unlink); err != nil {
		t.Errorf("sent again: %v", err)
	}
	if err := s.again(failed, unlink); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a request that had failed, sent again: %v", err)
	}
	s.fs.Detach()
	s.mount(testConn + 1)
	if _, ok := s.fs.Answer(testConn, last); ok {
		t.Error("a connection that was not resumed has answers")
	}
	s.takeOver()
	if _, ok := s.fs.Answer(testConn, last); !ok {
		t.Error("the answer is lost")
	}
	if err := s.fs.EndResume(); err != nil {
		t.Fatal(err)
	}
	if err := s.again(last, unlink); err != nil {
		t.Errorf("sent again late: %v", err)
	}
	s.unmount()
}

// An answer to another operation than the one that asks is a defect of one of
// the two: it must not pass for success.
func TestAnswerToAnotherOperation(t *testing.T) {
	s := newServed(t)
	n := s.must(func() error { return s.SetXattr(nvfs.RootID, []byte("user.a"), []byte("b"), 0) })
	s.takeOver()
	if err := s.again(n, func() error { return s.RemoveXattr(nvfs.RootID, []byte("user.a")) }); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v, want EIO", err)
	}
	if s.fs.Health() == "" {
		t.Error("nothing is reported")
	}
	if _, err := s.GetXattr(nvfs.RootID, []byte("user.a"), nil); err != nil {
		t.Errorf("it was executed: %v", err)
	}
}

// An operation that was given up after a part of it keeps its error.
func TestAnswerWithError(t *testing.T) {
	s := newServed(t)
	id := s.create("a")
	n := s.must(func() error { return s.Fallocate(id, 0, 0, 1<<20) })
	s.fs.Detach()
	changed := 0
	for slot := range layout.SlotCount {
		off := layout.SlotOffset(slot)
		r := layout.Record(bytes.Clone(s.space.Bytes()[off : off+layout.SlotSize]))
		if q := r.Request(); q.Conn == testConn && q.Unique == n {
			q.Errno = uint32(syscall.ENOSPC)
			r.SetRequest(q)
			r.SealRecord(s.fs.Superblock().Seed())
			p := s.space.NewPersister()
			p.Copy(off, r[:layout.RecRetire])
			if err := p.Fence(); err != nil {
				t.Fatal(err)
			}
			changed++
		}
	}
	if changed != 1 {
		t.Fatalf("%d records of the request", changed)
	}
	s.mount(testConn)
	if err := s.again(n, func() error { return s.Fallocate(id, 0, 0, 1<<20) }); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v, want ENOSPC", err)
	}
	s.unmount()
}

// A connection can be taken over from servers that answered nothing for as
// long as the journal holds all answers; then the mount fails.
func TestTooManyAnswers(t *testing.T) {
	s := newServed(t)
	s.Close()
	const workers = layout.SlotCount/2 - 1
	known := []uint64{}
	for len(known) <= layout.MaxAnswers {
		for range workers {
			w, err := s.fs.NewWorker()
			if err != nil {
				t.Fatal(err)
			}
			s.Worker = w
			known = append(known, s.must(func() error { return w.SetXattr(nvfs.RootID, []byte("user.a"), fmt.Append(nil, s.unique), 0) }))
		}
		s.fs.Detach()
		fs, err := nvfs.Mount(s.space, nvfs.Options{Resume: testConn})
		if len(known) > layout.MaxAnswers {
			if !errors.Is(err, nvfs.ErrAnswers) {
				t.Fatalf("%d answers: %v, want ErrAnswers", len(known), err)
			}
			break
		}
		if err != nil {
			t.Fatalf("%d answers: %v", len(known), err)
		}
		for _, n := range known {
			if _, ok := fs.Answer(testConn, n); !ok {
				t.Fatalf("of %d answers that of request %d is lost", len(known), n)
			}
		}
		s.fs = fs
	}
	if err := check(s.space); err != nil {
		t.Error(err)
	}
	s.mount(0)
	s.unmount()
}
