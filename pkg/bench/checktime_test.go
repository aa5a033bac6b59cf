package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMeasureCheck takes turns among the checkers of the kernel's filesystems
// and leaves nothing; that of NVFS needs a server to fill the volume and is
// tested where there is one.
func TestMeasureCheck(t *testing.T) {
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "f"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	memory := testMemory(t)
	times, err := MeasureCheck(t.Context(), CheckOptions{
		Dir: memory.Dir, Size: 64 << 20, Filesystems: []Filesystem{LoopFS{"ext4"}, TmpFS{}, LoopFS{"ext2"}},
		Tree: Tree{Dir: src}, Copies: 2, Threads: []int{1}, Rounds: 3, Progress: &strings.Builder{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(times) != 2 || times[0].Filesystem != "ext4" || times[1].Filesystem != "ext2" {
		t.Fatalf("measured %+v, want ext4 and ext2", times)
	}
	for _, c := range times {
		if c.Min <= 0 || c.Seconds < c.Min || c.Max < c.Seconds || len(c.all) != 3 {
			t.Errorf("implausible time %+v", c)
		}
	}
	assertMemoryUnused(t, memory)
}
