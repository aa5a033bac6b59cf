package fsck

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// fault is a panic that guard caught.
type fault struct {
	value any
	stack []byte
}

// guard runs f and returns the panic that ended it, if one did. Within f a
// read of memory that no medium backs is such a panic.
func guard(f func()) (caught *fault) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			caught = &fault{value: v, stack: debug.Stack()}
		}
	}()
	f()
	return nil
}

// internalError is a panic that is no fault of the medium.
type internalError struct{ *fault }

func (e *internalError) Error() string {
	return fmt.Sprintf("internal error: %v\n%s", e.value, e.stack)
}

// faulted turns a fault of the medium into a problem. Any other panic is a
// defect of this package and ends the check with an error.
func (w *worker) faulted(f *fault) error {
	e, ok := f.value.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		return &internalError{f}
	}
	p := Problem{Code: Unreadable, Group: w.groupNum(), Ino: w.at.ino}
	where := "a place outside of the volume"
	if w.volume != nil {
		if off, ok := w.offsetOf(e.Addr()); ok {
			p.Block = off / blockSize
			where = fmt.Sprintf("byte %d", off)
		}
	}
	w.found.add(p, "the medium cannot be read at %s: %v", where, e)
	if w.part.to == 0 { // no part of a pass: there is nothing to go on with
		return errEnough
	}
	return nil
}
