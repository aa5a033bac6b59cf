//go:build !nvfsbug

package nvfs

import "github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"

// Mistakes that the crash test has to find are built in with the tag nvfsbug
// alone (mistakes_nvfsbug.go), by make crash-selftest: a test that never failed
// proves nothing. Without the tag they are constants that are false, and the
// compiler drops what depends on them.
const (
	mistakeTail    = false
	mistakeFence   = false
	mistakeRename  = false
	mistakeSlot    = false
	mistakeAnswers = false
)

func (w *Worker) removeOldNameFirst(*renameArgs, layout.Inode) (from, to layout.Inode, err error) {
	panic("built without the tag nvfsbug")
}
