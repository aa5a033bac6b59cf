package nvfs

// DirDepth is the number of index blocks above the leaf of a name.
func (w *Worker) DirDepth(dir NodeID, name []byte) (int, error) {
	w.rlock(dir.Ino())
	defer w.unlock()
	n, err := w.fs.dirAt(dir)
	if err != nil {
		return 0, err
	}
	var p dirPath
	err = w.dirWalk(dir.Ino(), n, w.fs.dirKey(name), &p)
	return p.level, err
}
