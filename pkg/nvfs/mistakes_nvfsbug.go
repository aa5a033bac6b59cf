//go:build nvfsbug

package nvfs

import (
	"fmt"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// The mistakes of Plant.
var (
	mistakeTail    bool // the last line of a record's patches is not flushed
	mistakeFence   bool // no fence between data and the record that commits it
	mistakeRename  bool // rename removes the old name in a record of its own
	mistakeSlot    bool // what follows a request's record overwrites it before the reply
	mistakeAnswers bool // a successor does not keep the answers for its own successor
)

// Mistakes are the names that Plant knows.
var Mistakes = []string{"tail", "fence", "rename", "slot", "answers"}

// Plant makes the engine err from now on: "" is right again. No volume may be
// mounted meanwhile.
func Plant(mistake string) {
	mistakeTail, mistakeFence, mistakeRename, mistakeSlot, mistakeAnswers = false, false, false, false, false
	switch mistake {
	case "":
	case "tail":
		mistakeTail = true
	case "fence":
		mistakeFence = true
	case "rename":
		mistakeRename = true
	case "slot":
		mistakeSlot = true
	case "answers":
		mistakeAnswers = true
	default:
		panic(fmt.Sprintf("unknown mistake %q", mistake))
	}
}

// removeOldNameFirst commits the removal of the old name and stages both
// directories again.
func (w *Worker) removeOldNameFirst(r *renameArgs, dir layout.Inode) (from, to layout.Inode, err error) {
	if err := w.dirRemove(r.fromDir.Ino(), dir, r.fromName); err != nil {
		return nil, nil, err
	}
	if err := w.commit(); err != nil {
		return nil, nil, err
	}
	if from, err = w.stageDir(r.fromDir); err == nil {
		to, err = w.stageDir(r.toDir)
	}
	return from, to, err
}
