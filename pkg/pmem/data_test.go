package pmem

import (
	"os"
	"testing"
)

// TestNextData: the data of a sparse file is found without reading its holes,
// which would allocate them on tmpfs.
func TestNextData(t *testing.T) {
	const size, at = 8 << 20, 4<<20 + 4096
	path := newFile(t, tmpfsDir(t), "sparse", size)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{1}, at); err != nil {
		t.Fatal(err)
	}
	m := open(t, path, Options{ReadOnly: true})
	for _, next := range []func(uint64) (uint64, uint64, error){
		m.NextData,
		func(off uint64) (uint64, uint64, error) { return NextData(f, off, size) },
	} {
		start, end, err := next(0)
		if err != nil || start > at || end <= at || start == 0 || end == size {
			t.Errorf("data in [%d, %d), %v; want a part of the file with byte %d", start, end, err, at)
		}
		for _, off := range []uint64{end, size, size + 1} {
			if start, _, err := next(off); err != nil || start != size {
				t.Errorf("behind byte %d: %d, %v; want nothing", off, start, err)
			}
		}
	}
}
