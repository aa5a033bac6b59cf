package mountd

import (
	"os"
	"runtime"
	"testing"
)

// A descriptor that a rehearsal has used, and closed, is soon that of another
// file, which nobody else may close: least of all the garbage collector, on
// behalf of a File that was forgotten.
func TestRehearsalClosesOnlyItsOwn(t *testing.T) {
	for range 10 {
		if err := rehearseLink(); err != nil {
			t.Fatal(err)
		}
		var files []*os.File
		for range 8 {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, r, w)
		}
		collectGarbage(t)
		for _, f := range files {
			if _, err := f.Stat(); err != nil {
				t.Errorf("after a rehearsal: %v", err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// collectGarbage returns when what was unreachable has been cleaned up.
func collectGarbage(t *testing.T) {
	t.Helper()
	for range 2 { // the second time, all that was queued before has run
		done := make(chan struct{})
		runtime.SetFinalizer(&struct{ _ [64]byte }{}, func(any) { close(done) })
		runtime.GC()
		<-done
	}
}
