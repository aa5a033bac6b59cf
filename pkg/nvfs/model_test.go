package nvfs_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/internal/model"
)

const capability = "security.capability"

// dumpModel is what mounted.dump gives for the same tree.
func dumpModel(m *model.Model) string {
	first := map[*model.Node]string{}
	var lines []string
	var visit func(n *model.Node, path string)
	visit = func(n *model.Node, path string) {
		if p, seen := first[n]; seen {
			lines = append(lines, path+" = "+p)
			return
		}
		first[n] = path
		lines = append(lines, path+" "+describeNode(n))
		for _, name := range slices.Sorted(maps.Keys(n.Children)) {
			visit(n.Children[name], path+"/"+name)
		}
	}
	visit(m.Root, "/")
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func describeNode(n *model.Node) string {
	s := fmt.Sprintf("%o n%d %d:%d r%x m%d c%d b%d%s", n.Mode, n.Nlink, n.UID, n.GID, n.Rdev,
		n.Mtime.Sec, n.Ctime.Sec, n.Btime.Sec, describeXattrs(n.Xattrs))
	switch n.Type() {
	case unix.S_IFREG:
		h := sha256.New()
		for _, at := range slices.Sorted(maps.Keys(n.Pages)) {
			hashPages(h, at*pageSize, n.Pages[at][:])
		}
		return fmt.Sprintf("%s %d:%x", s, n.Size, h.Sum(nil)[:8])
	case unix.S_IFLNK:
		return s + " -> " + n.Target
	}
	return s
}
