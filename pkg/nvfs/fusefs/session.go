package fusefs

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// CacheMode says what the kernel keeps of file data.
type CacheMode string

const (
	// CacheThrough keeps file data in the page cache for reads; every write
	// reaches the filesystem, and is durable, before it returns.
	CacheThrough CacheMode = "through"
	// CacheDirect keeps no file data: reads and writes always reach the
	// filesystem, and several may write to one file at once.
	CacheDirect CacheMode = "direct"
	// CacheWriteback lets the kernel write file data later: it is durable
	// after fsync(2) only.
	CacheWriteback CacheMode = "writeback"
)

// ParseCacheMode checks the name of a cache mode; "" is CacheThrough.
func ParseCacheMode(s string) (CacheMode, error) {
	switch m := CacheMode(s); m {
	case "":
		return CacheThrough, nil
	case CacheThrough, CacheDirect, CacheWriteback:
		return m, nil
	}
	return "", fmt.Errorf("unknown cache mode %q: use through, direct or writeback", s)
}

const (
	protocolMajor = 7
	// protocolMinor is the newest version this package was written for: it
	// makes the kernel send the structures that are decoded here.
	protocolMinor = 45
	// minKernelMinor is the oldest version that has the flags and structure
	// sizes relied upon (Linux 5.4).
	minKernelMinor = 31

	// MaxWrite is the largest payload of a READ or WRITE in bytes: a thread's
	// buffers stay in its CPU's second-level cache.
	MaxWrite = 512 << 10

	maxBackground       = 128
	congestionThreshold = 96
)

// Session is the state of a FUSE connection that its kernel side remembers:
// a process that takes the connection over must go on with it. It is fixed by
// the INIT request and can be saved as JSON.
type Session struct {
	// ConnID is random, and unique among all connections to a volume.
	ConnID uint64 `json:"connID"`
	// Minor is the kernel's protocol version.
	Minor uint32 `json:"minor"`
	// Flags are the capabilities in force.
	Flags uint64 `json:"flags"`
	// Enosys has bit n set when opcode n is answered ENOSYS for good: the
	// kernel does not send it again.
	Enosys uint64    `json:"enosys"`
	Cache  CacheMode `json:"cache"`
	// Transport is how requests travel; "" is dev.
	Transport string `json:"transport,omitempty"`
}

// has reports whether capability flag is in force.
func (s *Session) has(flag uint64) bool { return s.Flags&flag != 0 }

// CanContinue reports whether another server can go on with the connection.
func (s *Session) CanContinue() bool { return s.Transport != uringName }

// unimplemented reports whether op is answered ENOSYS for good.
func (s *Session) unimplemented(op opcode) bool { return op < 64 && s.Enosys>>op&1 != 0 }

// commonFlags are wanted in every cache mode. The locks of POSIX and flock
// are left to the kernel, which does them right on one node. ATOMIC_O_TRUNC
// is never asked for: an OPEN that is answered ENOSYS would lose O_TRUNC.
const commonFlags = fuse.CAP_ASYNC_READ | fuse.CAP_EXPORT_SUPPORT | fuse.CAP_BIG_WRITES |
	fuse.CAP_DONT_MASK | fuse.CAP_READDIRPLUS | fuse.CAP_READDIRPLUS_AUTO | fuse.CAP_ASYNC_DIO |
	fuse.CAP_NO_OPEN_SUPPORT | fuse.CAP_PARALLEL_DIROPS | fuse.CAP_POSIX_ACL | fuse.CAP_ABORT_ERROR |
	fuse.CAP_MAX_PAGES | fuse.CAP_CACHE_SYMLINKS | fuse.CAP_NO_OPENDIR_SUPPORT |
	fuse.CAP_EXPLICIT_INVAL_DATA | fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_SETXATTR_EXT |
	fuse.CAP_INIT_EXT | fuse.CAP_DIRECT_IO_ALLOW_MMAP | fuse.CAP_HAS_RESEND | fuse.CAP_ALLOW_IDMAP

// negotiate fixes the session from what the kernel offers.
func negotiate(minor uint32, offered uint64, cache CacheMode) (*Session, error) {
	if minor < minKernelMinor {
		return nil, fmt.Errorf("the kernel speaks FUSE 7.%d; 7.%d (Linux 5.4) is the oldest that is supported", minor, minKernelMinor)
	}
	s := &Session{Minor: minor, Cache: cache}
	s.Flags = offered & commonFlags
	if cache == CacheWriteback {
		s.Flags |= offered & fuse.CAP_WRITEBACK_CACHE
		if !s.has(fuse.CAP_WRITEBACK_CACHE) {
			return nil, fmt.Errorf("the kernel has no FUSE writeback cache: use cache mode through")
		}
	}
	if !s.has(fuse.CAP_POSIX_ACL) {
		// Ownership may be mapped only where the kernel checks permissions,
		// which POSIX_ACL makes certain.
		s.Flags &^= fuse.CAP_ALLOW_IDMAP
	}
	s.Enosys = enosysAnswers(s)
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("connection id: %w", err)
	}
	s.ConnID = binary.LittleEndian.Uint64(id[:])
	return s, nil
}

// choose fixes the transport: uring where it is wanted and offered, else dev.
func (s *Session) choose(wanted string, offered uint64) {
	s.Transport = devName
	if wanted == uringName && offered&fuse.CAP_OVER_IO_URING != 0 {
		s.Transport = uringName
		s.Flags |= fuse.CAP_OVER_IO_URING
	}
}

// enosysAnswers is the set of opcodes the kernel is told never to send.
// Flush and fsync have nothing to do because every operation is durable when
// it returns (in writeback mode the kernel writes its dirty pages first).
// Handles carry no state, so files and directories need no open; without
// CREATE the kernel makes files by MKNOD, which then saves the RELEASE.
func enosysAnswers(s *Session) uint64 {
	ops := []opcode{opFlush, opFsync, opFsyncdir, opAccess, opInterrupt}
	if s.has(fuse.CAP_NO_OPENDIR_SUPPORT) {
		ops = append(ops, opOpendir)
	}
	// In direct mode OPEN must say so for each file.
	if s.has(fuse.CAP_NO_OPEN_SUPPORT) && s.Cache != CacheDirect {
		ops = append(ops, opOpen, opCreate)
	}
	// Dirty pages over holes, which the filesystem does not know, would be
	// taken for holes.
	if s.Cache == CacheWriteback {
		ops = append(ops, opLseek)
	}
	var set uint64
	for _, op := range ops {
		set |= 1 << op
	}
	return set
}

// openFlags are the flags of an OPEN, CREATE or TMPFILE reply.
func (s *Session) openFlags() uint32 {
	if s.Cache == CacheDirect {
		return fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES | fuse.FOPEN_NOFLUSH
	}
	return fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
}

// initReply is the answer that puts the session in force.
func (s *Session) initReply(in *fuse.InitIn) fuse.InitOut {
	return fuse.InitOut{
		Major:               protocolMajor,
		Minor:               protocolMinor,
		MaxReadAhead:        in.MaxReadAhead,
		Flags:               uint32(s.Flags),
		Flags2:              uint32(s.Flags >> 32),
		MaxBackground:       maxBackground,
		CongestionThreshold: congestionThreshold,
		MaxWrite:            MaxWrite,
		TimeGran:            1,
		MaxPages:            uint16(MaxWrite / os.Getpagesize()),
	}
}
