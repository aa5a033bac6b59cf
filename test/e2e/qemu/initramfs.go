//go:build qemu

package qemu

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// initramfs returns an archive in the kernel's "newc" cpio format: the init
// program, the modules and a few directories. It is not compressed: under TCG
// reading is faster than expanding.
func initramfs(initProgram, modules string) ([]byte, error) {
	var a cpioArchive
	for _, dir := range []string{"dev", "proc", "sys", "newroot", "modules"} {
		a.add(dir, 0o40755, nil)
	}
	program, err := os.ReadFile(initProgram)
	if err != nil {
		return nil, err
	}
	a.add("init", 0o100755, program)
	entries, err := os.ReadDir(modules)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(modules, e.Name()))
		if err != nil {
			return nil, err
		}
		a.add("modules/"+e.Name(), 0o100644, data)
	}
	a.add("TRAILER!!!", 0, nil)
	return a.buf.Bytes(), nil
}

// cpioArchive writes entries with the 110-byte header of hexadecimal fields.
type cpioArchive struct {
	buf   bytes.Buffer
	inode int
}

func (a *cpioArchive) add(name string, mode int, data []byte) {
	a.inode++
	// ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor
	// rdevminor namesize check
	fmt.Fprintf(&a.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	a.buf.WriteString(name + "\x00")
	a.pad()
	a.buf.Write(data)
	a.pad()
}

func (a *cpioArchive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}
