package fusefs

import "github.com/nvfs-csi/nvfs-csi/pkg/nvfs"

// Filesystem is what a Transport serves.
type Filesystem interface {
	// NewWorker returns the executor of one thread's requests. It is called
	// concurrently.
	NewWorker() (Worker, error)
}

// Worker executes requests for one goroutine at a time. Names, link targets
// and data are valid only during the call. Errors are syscall.Errno values,
// possibly wrapped; anything else is reported to the caller as EIO.
//
// Every change is durable and atomic when the method returns: the kernel is
// told once that flush and fsync have nothing to do.
type Worker interface {
	// Begin opens a request, of any kind; End is called once its reply has
	// been given to the kernel.
	Begin(r *nvfs.Request)
	End()

	// Lookup finds name, "." and ".." included, and counts one lookup of the
	// inode. So do Mknod, Mkdir, Tmpfile, Symlink and Link.
	Lookup(parent nvfs.NodeID, name []byte, a *nvfs.Attr) error
	// Forget takes n lookups back. An unknown id is ignored.
	Forget(id nvfs.NodeID, n uint64)

	GetAttr(id nvfs.NodeID, a *nvfs.Attr) error
	// SetAttr applies s and reports the attributes that result. KillSuidgid
	// has no effect on directories.
	SetAttr(id nvfs.NodeID, s *nvfs.SetAttr, a *nvfs.Attr) error

	// Mknod makes any inode but a directory or a symbolic link: EEXIST when
	// the name is taken.
	Mknod(parent nvfs.NodeID, name []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error
	Mkdir(parent nvfs.NodeID, name []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error
	// Tmpfile makes a regular file without a name.
	Tmpfile(parent nvfs.NodeID, c *nvfs.CreateArgs, a *nvfs.Attr) error
	Symlink(parent nvfs.NodeID, name, target []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error
	Readlink(id nvfs.NodeID, dst []byte) (int, error)
	Link(id, parent nvfs.NodeID, name []byte, a *nvfs.Attr) error
	Unlink(parent nvfs.NodeID, name []byte) error
	Rmdir(parent nvfs.NodeID, name []byte) error
	Rename(oldParent nvfs.NodeID, oldName []byte, newParent nvfs.NodeID, newName []byte, flags uint32) error

	Read(id nvfs.NodeID, off uint64, dst []byte) (int, error)
	Write(id nvfs.NodeID, off uint64, src []byte, flags nvfs.WriteFlags) (int, error)
	Fallocate(id nvfs.NodeID, mode uint32, off, length uint64) error
	// Lseek serves SEEK_DATA and SEEK_HOLE.
	Lseek(id nvfs.NodeID, off uint64, whence uint32) (uint64, error)
	// CopyFileRange may copy less than length.
	CopyFileRange(src nvfs.NodeID, srcOff uint64, dst nvfs.NodeID, dstOff, length uint64, flags nvfs.WriteFlags) (uint64, error)
	Fsync(id nvfs.NodeID) error

	// ReadDir yields the entries after cookie (0: from the start), "." and
	// ".." included, until yield returns false. yield does not call the
	// Worker.
	ReadDir(id nvfs.NodeID, cookie uint64, yield func(*nvfs.DirEntry) bool) error

	// GetXattr and ListXattr return the size of the value or list; with an
	// empty dst nothing is copied, and a dst too small is ERANGE.
	GetXattr(id nvfs.NodeID, name, dst []byte) (int, error)
	SetXattr(id nvfs.NodeID, name, value []byte, flags uint32) error
	ListXattr(id nvfs.NodeID, dst []byte) (int, error)
	RemoveXattr(id nvfs.NodeID, name []byte) error

	StatFS(s *nvfs.StatFS) error

	// Stripped reports that the last call stripped set-ID bits or
	// security.capability, so that attributes cached by the kernel are stale.
	Stripped() bool
}

// Aborter is implemented by Workers that hold locks or open steps during a
// call. Abort is called instead of returning to a call that panicked or
// touched memory that cannot be read.
type Aborter interface {
	Abort()
}

// HoleTracker is implemented by Workers that tell holes from data. From the
// call of TrackHoles on they take for data what was read of a hole, until its
// inode is forgotten: the kernel may have it in its page cache, stored to
// through a mapping and not yet written.
type HoleTracker interface {
	TrackHoles()
}
