package e2e

import (
	encbinary "encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// ACLs as the table writes them: "u::rwx,u:alice:r--,g::r-x,m::rwx,o::r--".

var aclTags = map[string]uint16{"u": 0x01, "U": 0x02, "g": 0x04, "G": 0x08, "m": 0x10, "o": 0x20}

const aclUndefined = 0xffffffff

func aclName(kind string) string {
	return map[string]string{"access": "system.posix_acl_access", "default": "system.posix_acl_default"}[kind]
}

// encodeACL makes the value of the extended attribute. "none" is the value
// that removes an ACL.
func encodeACL(text string) []byte {
	out := encbinary.LittleEndian.AppendUint32(nil, 2)
	if text == "none" {
		return out
	}
	for entry := range strings.SplitSeq(text, ",") {
		f := strings.Split(entry, ":")
		tag, id := f[0], uint32(aclUndefined)
		if f[1] != "" {
			tag, id = strings.ToUpper(tag), uint32(ids[f[1]])
		}
		perm := uint16(0)
		for i, c := range "rwx" {
			if f[2][i] == byte(c) {
				perm |= 4 >> i
			}
		}
		out = encbinary.LittleEndian.AppendUint16(out, aclTags[tag])
		out = encbinary.LittleEndian.AppendUint16(out, perm)
		out = encbinary.LittleEndian.AppendUint32(out, id)
	}
	return out
}

func decodeACL(b []byte) string {
	if len(b) < 4 || len(b)%8 != 4 || encbinary.LittleEndian.Uint32(b) != 2 {
		return fmt.Sprintf("no ACL: %x", b)
	}
	var out []string
	for b = b[4:]; len(b) > 0; b = b[8:] {
		tag, perm, id := encbinary.LittleEndian.Uint16(b), encbinary.LittleEndian.Uint16(b[2:]), encbinary.LittleEndian.Uint32(b[4:])
		for name, v := range aclTags {
			if v != tag {
				continue
			}
			who := ""
			if name == "U" || name == "G" {
				who = idName(int(id))
			}
			rwx := []byte("---")
			for i := range rwx {
				if perm&(4>>i) != 0 {
					rwx[i] = "rwx"[i]
				}
			}
			out = append(out, strings.ToLower(name)+":"+who+":"+string(rwx))
		}
	}
	return strings.Join(out, ",")
}

func verbSetACL(_ *actor, v []string) (string, error) {
	return "", unix.Lsetxattr(v[0], aclName(v[1]), encodeACL(v[2]), 0)
}

func verbGetACL(_ *actor, v []string) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Lgetxattr(v[0], aclName(v[1]), buf)
	if err != nil {
		return "", err
	}
	return decodeACL(buf[:n]), nil
}
