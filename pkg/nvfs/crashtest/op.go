package crashtest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/internal/model"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// Op is an operation: a verb and its arguments, separated by blanks. What a
// write or an attribute stores depends on the place of the operation in its
// case alone, so the text says all.
//
//	create PATH [MODE]          mkdir PATH        mknod PATH fifo|sock|char|block
//	symlink PATH LENGTH         link OLD NEW      unlink PATH       rmdir PATH
//	rename OLD NEW [noreplace|exchange|whiteout|...]
//	write PATH OFFSET LENGTH [kill]               copy FROM OFFSET TO OFFSET LENGTH
//	truncate PATH SIZE          fallocate PATH alloc|keep|punch|zero|zerokeep OFFSET LENGTH
//	setattr PATH [mode=OCTAL] [uid=N] [gid=N] [size=N] [mtime=N] [atime=N] [now]
//	setxattr PATH NAME LENGTH [create|replace]    rmxattr PATH NAME
//	tmpfile DIR                 a file without a name, held
//	hold PATH                   holds what the path names
//	linkheld PATH               writeheld OFFSET LENGTH             release
//	fill PATH                   allocates all space that there is, beyond the end of the file
//	grow                        over the whole device
//	growonto                    over a further device
type Op string

// Ops splits a list of operations at semicolons.
func Ops(list string) []Op {
	var ops []Op
	for op := range strings.SplitSeq(list, ";") {
		if op = strings.TrimSpace(op); op != "" {
			ops = append(ops, Op(op))
		}
	}
	return ops
}

// Join is the inverse of Ops.
func Join(ops []Op) string {
	text := make([]string, len(ops))
	for i, op := range ops {
		text[i] = string(op)
	}
	return strings.Join(text, "; ")
}

// torn is a file whose content an operation changes in place.
type torn struct {
	path     string // as in dumps
	old, new []byte
	// stepwise says that the operation takes several records, and that a crash
	// may leave a part of its effect: a prefix of what is written.
	stepwise bool
}

// tornLimit bounds how much of a file is compared word by word.
const tornLimit = 1 << 20

// session carries operations out on a volume and on a model of it, or on the
// model alone.
type session struct {
	v     *volume // nil: none
	w     *nvfs.Worker
	m     *model.Model
	clock *clock
	still bool // the clock does not go on with each operation
	seq   int  // operations done

	heldID   nvfs.NodeID
	heldNode *model.Node

	// Of the last operation.
	torn   *torn
	result uint64
	errno  syscall.Errno
	// reply is what the volume answered; call asks it again, through w. It is
	// nil when the operation was no request, or more than one.
	reply reply
	call  func() error
}

// reply is what a request is answered with, apart from its error.
type reply struct {
	attr nvfs.Attr
	n    uint64
}

// conn is the connection of the operations' requests.
const conn = 0x6372617368

// newSession begins on a fresh volume; v is nil for a model alone.
func newSession(v *volume, worker int, c *clock) *session {
	s := &session{v: v, m: model.New(c.now()), clock: c}
	if v != nil {
		s.w = v.workers[worker]
	}
	return s
}

// run carries op out. An error means that volume and model differ.
func (s *session) run(op Op) error {
	f := strings.Fields(string(op))
	verb, ok := verbs[f[0]]
	if !ok {
		return fmt.Errorf("unknown operation %q", op)
	}
	if !s.still {
		s.clock.ticks.Add(1)
	}
	s.m.Now = s.clock.now()
	s.seq++
	s.torn, s.result, s.errno = nil, 0, 0
	s.reply, s.call = reply{}, nil
	if s.w != nil {
		s.w.Begin(&nvfs.Request{Conn: conn, Unique: uint64(s.seq)})
		defer s.w.End()
	}
	if err := verb(s, &args{words: f[1:]}); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// args are the arguments of an operation.
type args struct {
	words []string
	bad   error
}

func (a *args) word() string {
	if len(a.words) == 0 {
		return ""
	}
	w := a.words[0]
	a.words = a.words[1:]
	return w
}

func (a *args) num() uint64 {
	n, err := strconv.ParseUint(a.word(), 0, 64)
	if err != nil {
		a.bad = err
	}
	return n
}

// data is what an operation stores; no word of it is zero or like one that
// another of the operations around it stores.
func (s *session) data(n uint64) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(s.seq*37+1) + byte(i/8)*3 + byte(i>>11)
		if p[i] == 0 {
			p[i] = 0xff
		}
	}
	return p
}

// split cuts a path into its directory and the name there.
func split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:i], path[i+1:]
}

// node finds a path in the model.
func (s *session) node(path string) (*model.Node, syscall.Errno) {
	at := s.m.Root
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		var e syscall.Errno
		if at, e = s.m.Lookup(at, name); e != 0 {
			return nil, e
		}
	}
	return at, 0
}

// place finds a path in both; err is a difference, errno that both miss it.
func (s *session) place(path string) (id nvfs.NodeID, n *model.Node, err error) {
	n, want := s.node(path)
	if s.w != nil {
		var got error
		id, got = find(s.w, path)
		if e := nvfs.Errno(got); e != want {
			return 0, nil, fmt.Errorf("lookup of %s gives %v, the model %v", path, got, want)
		}
	}
	if want != 0 {
		s.errno = want
		return 0, nil, errMissing
	}
	return id, n, nil
}

// errMissing says that the volume and the model agree that a path does not
// exist.
var errMissing = errors.New("no such path")

// agree runs f on the volume and g on the model and compares the results.
// When the volume is full, of which the model knows nothing, g is not run.
func (s *session) agree(f func() error, g func() syscall.Errno) error {
	var got error
	if s.w != nil {
		s.call = f
		if got = f(); errors.Is(got, syscall.ENOSPC) {
			s.errno = syscall.ENOSPC
			return nil
		}
	}
	s.errno = g()
	if s.w != nil && nvfs.Errno(got) != s.errno {
		return fmt.Errorf("it gives %v, the model %v", got, s.errno)
	}
	return nil
}

// missing turns errMissing into success.
func missing(err error) error {
	if errors.Is(err, errMissing) {
		return nil
	}
	return err
}

// tears notes that an operation changes the content of n in place; it is
// called before the model changes, the function that it returns afterwards.
func (s *session) tears(n *model.Node, stepwise bool) func() {
	if !n.Regular() {
		return func() {}
	}
	path := s.m.PathOf(n)
	old, _ := s.m.Read(n, 0, tornLimit)
	return func() {
		if path == "" {
			return
		}
		now, _ := s.m.Read(n, 0, tornLimit)
		s.torn = &torn{path: path, old: old, new: now, stepwise: stepwise}
	}
}

var verbs map[string]func(*session, *args) error

func init() {
	verbs = map[string]func(*session, *args) error{
		"create": func(s *session, a *args) error { return s.create(a, unix.S_IFREG) },
		"mkdir":  func(s *session, a *args) error { return s.create(a, unix.S_IFDIR) },
		"mknod":  (*session).mknod, "symlink": (*session).symlink, "link": (*session).link,
		"unlink": func(s *session, a *args) error { return s.remove(a, false) },
		"rmdir":  func(s *session, a *args) error { return s.remove(a, true) },
		"rename": (*session).rename,
		"write":  (*session).write,
		"copy":   (*session).copyRange,
		"truncate": func(s *session, a *args) error {
			return s.setattr(&args{words: []string{a.word(), "size=" + a.word()}})
		},
		"setattr": (*session).setattr, "fallocate": (*session).fallocate,
		"setxattr": (*session).setxattr, "rmxattr": (*session).rmxattr,
		"tmpfile": (*session).tmpfile, "hold": (*session).hold, "linkheld": (*session).linkheld,
		"writeheld": (*session).writeheld, "release": (*session).release,
		"fill": (*session).fill, "grow": (*session).grow, "growonto": (*session).growOnto,
	}
}

// parent finds the directory of a path.
func (s *session) parent(path string) (nvfs.NodeID, *model.Node, string, error) {
	dir, name := split(path)
	id, n, err := s.place(dir)
	return id, n, name, err
}

// made drops the references that making n gave.
func (s *session) made(n *model.Node) {
	if s.errno != 0 {
		return
	}
	s.m.Forget(n, 1)
	if s.w != nil {
		s.w.Forget(s.reply.attr.ID, 1)
	}
}

func (s *session) create(a *args, typ uint32) error {
	path, mode := a.word(), uint64(0644)
	if typ == unix.S_IFDIR {
		mode = 0755
	}
	if len(a.words) > 0 {
		var err error
		if mode, err = strconv.ParseUint(a.word(), 8, 32); err != nil {
			return err
		}
	}
	return s.makeNode(path, typ|uint32(mode), 0)
}

func (s *session) makeNode(path string, mode, rdev uint32) error {
	dir, d, name, err := s.parent(path)
	if err != nil {
		return missing(err)
	}
	c := nvfs.CreateArgs{Mode: mode, Rdev: rdev}
	var n *model.Node
	err = s.agree(func() error {
		if mode&unix.S_IFMT == unix.S_IFDIR {
			return s.w.Mkdir(dir, []byte(name), &c, &s.reply.attr)
		}
		return s.w.Mknod(dir, []byte(name), &c, &s.reply.attr)
	}, func() (e syscall.Errno) {
		n, e = s.m.Create(d, name, mode, 0, rdev, "")
		return e
	})
	s.made(n)
	return err
}

func (s *session) mknod(a *args) error {
	path := a.word()
	typ := map[string]uint32{"fifo": unix.S_IFIFO, "sock": unix.S_IFSOCK, "char": unix.S_IFCHR, "block": unix.S_IFBLK}[a.word()]
	return s.makeNode(path, typ|0600, 0x103)
}

func (s *session) symlink(a *args) error {
	path := a.word()
	target := strings.Repeat(string(rune('a'+s.seq%26)), int(a.num()))
	dir, d, name, err := s.parent(path)
	if err != nil {
		return missing(err)
	}
	var n *model.Node
	err = s.agree(func() error {
		return s.w.Symlink(dir, []byte(name), []byte(target), &nvfs.CreateArgs{}, &s.reply.attr)
	}, func() (e syscall.Errno) {
		n, e = s.m.Create(d, name, unix.S_IFLNK|0777, 0, 0, target)
		return e
	})
	s.made(n)
	return errors.Join(err, a.bad)
}

func (s *session) link(a *args) error {
	id, n, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	return s.linkTo(id, n, a.word())
}

func (s *session) linkTo(id nvfs.NodeID, n *model.Node, path string) error {
	dir, d, name, err := s.parent(path)
	if err != nil {
		return missing(err)
	}
	err = s.agree(func() error { return s.w.Link(id, dir, []byte(name), &s.reply.attr) },
		func() syscall.Errno { return s.m.Link(n, d, name) })
	s.made(n)
	return err
}

func (s *session) remove(a *args, isDir bool) error {
	dir, d, name, err := s.parent(a.word())
	if err != nil {
		return missing(err)
	}
	return s.agree(func() error {
		if isDir {
			return s.w.Rmdir(dir, []byte(name))
		}
		return s.w.Unlink(dir, []byte(name))
	}, func() syscall.Errno { return s.m.Remove(d, name, isDir) })
}

func (s *session) rename(a *args) error {
	from, fromNode, fromName, err := s.parent(a.word())
	if err != nil {
		return missing(err)
	}
	to, toNode, toName, err := s.parent(a.word())
	if err != nil {
		return missing(err)
	}
	flags := uint32(0)
	for _, f := range a.words {
		flags |= map[string]uint32{"noreplace": nvfs.RenameNoReplace, "exchange": nvfs.RenameExchange, "whiteout": nvfs.RenameWhiteout}[f]
	}
	return s.agree(func() error { return s.w.Rename(from, []byte(fromName), to, []byte(toName), flags) },
		func() syscall.Errno { return s.m.Rename(fromNode, fromName, toNode, toName, flags) })
}

// writeChunk is what the engine writes with one record.
const writeChunk = 512 << 10

func (s *session) write(a *args) error {
	id, n, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	return s.writeTo(id, n, a)
}

func (s *session) writeTo(id nvfs.NodeID, n *model.Node, a *args) error {
	off, all := a.num(), s.data(a.num())
	p := all
	flags := nvfs.WriteFlags(0)
	if a.word() == "kill" {
		flags = nvfs.WriteKillSuidgid
	}
	size, stepwise := len(p), len(p) > writeChunk
	done := s.tears(n, false)
	err := s.agree(func() error {
		k, err := s.w.Write(id, off, all, flags)
		if err == nil && k < len(all) { // full
			p, stepwise = all[:k], true
		}
		s.reply.n = uint64(k)
		return err
	}, func() syscall.Errno { return s.m.Write(n, off, p, flags != 0) })
	done()
	if s.torn != nil {
		// A volume that gets full is written to in ever smaller steps.
		s.torn.stepwise = stepwise || s.errno == syscall.ENOSPC && size > model.PageSize
	}
	s.result = uint64(len(p))
	return errors.Join(err, a.bad)
}

func (s *session) copyRange(a *args) error {
	from, fromNode, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	fromOff := a.num()
	to, toNode, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	toOff, n := a.num(), a.num()
	done := s.tears(toNode, n > writeChunk)
	want := uint64(0)
	err = s.agree(func() (err error) {
		s.reply.n, err = s.w.CopyFileRange(from, fromOff, to, toOff, n, nvfs.WriteKillSuidgid)
		return err
	}, func() (e syscall.Errno) {
		want, e = s.m.CopyRange(fromNode, fromOff, toNode, toOff, n)
		return e
	})
	done()
	s.result = want
	if err == nil && s.w != nil && s.errno == 0 && s.reply.n != want {
		err = fmt.Errorf("copied %d bytes, the model %d", s.reply.n, want)
	}
	return errors.Join(err, a.bad)
}

func (s *session) setattr(a *args) error {
	id, n, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	var set nvfs.SetAttr
	for _, w := range a.words {
		name, value, _ := strings.Cut(w, "=")
		base := 10
		if name == "mode" {
			base = 8
		}
		v, err := strconv.ParseUint(value, base, 64)
		if err != nil && name != "now" {
			return err
		}
		switch name {
		case "mode":
			set.Valid, set.Mode = set.Valid|nvfs.SetMode, uint32(v)
		case "uid":
			set.Valid, set.UID = set.Valid|nvfs.SetUID, uint32(v)
		case "gid":
			set.Valid, set.GID = set.Valid|nvfs.SetGID, uint32(v)
		case "size":
			set.Valid, set.Size = set.Valid|nvfs.SetSize, v
		case "mtime":
			set.Valid, set.Mtime = set.Valid|nvfs.SetMtime, nvfs.Time{Sec: int64(v), Nsec: 1}
		case "atime":
			set.Valid, set.Atime = set.Valid|nvfs.SetAtime, nvfs.Time{Sec: int64(v), Nsec: 2}
		case "now":
			set.Valid |= nvfs.SetMtimeNow | nvfs.SetAtimeNow
		default:
			return fmt.Errorf("unknown attribute %q", name)
		}
	}
	return s.agree(func() error { return s.w.SetAttr(id, &set, &s.reply.attr) },
		func() syscall.Errno { return s.m.SetAttr(n, &set) })
}

var fallocModes = map[string]uint32{"alloc": 0, "keep": nvfs.FallocKeepSize, "punch": nvfs.FallocPunchHole | nvfs.FallocKeepSize,
	"zero": nvfs.FallocZeroRange, "zerokeep": nvfs.FallocZeroRange | nvfs.FallocKeepSize}

func (s *session) fallocate(a *args) error {
	id, n, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	mode, ok := fallocModes[a.word()]
	if !ok {
		return errors.New("unknown mode")
	}
	off, length := a.num(), a.num()
	done := s.tears(n, false)
	err = s.agree(func() error { return s.w.Fallocate(id, mode, off, length) },
		func() syscall.Errno { return s.m.Fallocate(n, mode, off, length) })
	done()
	return errors.Join(err, a.bad)
}

func (s *session) setxattr(a *args) error {
	id, n, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	name, value := a.word(), s.data(a.num())
	flags := map[string]uint32{"create": nvfs.XattrCreate, "replace": nvfs.XattrReplace}[a.word()]
	return errors.Join(s.agree(func() error { return s.w.SetXattr(id, []byte(name), value, flags) },
		func() syscall.Errno { return s.m.SetXattr(n, name, string(value), flags) }), a.bad)
}

func (s *session) rmxattr(a *args) error {
	id, n, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	name := a.word()
	return s.agree(func() error { return s.w.RemoveXattr(id, []byte(name)) },
		func() syscall.Errno { return s.m.RemoveXattr(n, name) })
}

// The operations on one file that is held: it stays when its last name goes.

func (s *session) tmpfile(a *args) error {
	if err := s.release(nil); err != nil {
		return err
	}
	dir, d, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	var n *model.Node
	err = s.agree(func() error {
		return s.w.Tmpfile(dir, &nvfs.CreateArgs{Mode: unix.S_IFREG | 0600}, &s.reply.attr)
	}, func() (e syscall.Errno) {
		n, e = s.m.Tmpfile(d, unix.S_IFREG|0600, 0)
		return e
	})
	if err == nil && s.errno == 0 {
		s.heldID, s.heldNode = s.reply.attr.ID, n
	}
	return err
}

func (s *session) hold(a *args) error {
	if err := s.release(nil); err != nil {
		return err
	}
	id, n, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	if s.w != nil {
		var attr nvfs.Attr
		if err := s.w.LookupID(id, &attr); err != nil {
			return err
		}
	}
	n.Refs++
	s.heldID, s.heldNode = id, n
	return nil
}

func (s *session) linkheld(a *args) error {
	if s.heldNode == nil {
		return nil
	}
	return s.linkTo(s.heldID, s.heldNode, a.word())
}

func (s *session) writeheld(a *args) error {
	if s.heldNode == nil {
		return nil
	}
	return s.writeTo(s.heldID, s.heldNode, a)
}

func (s *session) release(*args) error {
	if s.heldNode == nil {
		return nil
	}
	s.m.Forget(s.heldNode, 1)
	if s.w != nil {
		s.w.Forget(s.heldID, 1)
	}
	s.heldID, s.heldNode = 0, nil
	return nil
}

func (s *session) fill(a *args) error {
	id, n, err := s.place(a.word())
	if err != nil {
		return missing(err)
	}
	err = s.agree(func() error {
		for off := uint64(0); ; {
			var st nvfs.StatFS
			if err := s.w.StatFS(&st); err != nil || st.BlocksAvail == 0 {
				return err
			}
			for blocks := st.BlocksAvail; ; blocks /= 2 { // a part of it may be needed for the tree
				if blocks == 0 {
					return nil
				}
				err := s.w.Fallocate(id, nvfs.FallocKeepSize, off, blocks*model.PageSize)
				if err == nil {
					off += blocks * model.PageSize
					break
				}
				if !errors.Is(err, syscall.ENOSPC) {
					return err
				}
			}
		}
	}, func() syscall.Errno { return s.m.Fallocate(n, nvfs.FallocKeepSize, 0, 1) })
	s.call = nil // several requests
	return err
}

func (s *session) grow(*args) error {
	if s.v == nil {
		return nil
	}
	_, err := s.v.fs.Grow()
	return err
}

func (s *session) growOnto(*args) error {
	if s.v == nil {
		return nil
	}
	_, err := s.v.fs.GrowOnto(pmem.Part{Off: secondDevice, Len: secondSize}, [16]byte{15: 2})
	return err
}

// settle waits until the mount has counted the free space, so that no
// operation meets it half-way.
func (s *session) settle() error {
	var st nvfs.StatFS
	return s.w.StatFS(&st)
}
