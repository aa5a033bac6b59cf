package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
)

const deviceSize = 64 << 20

// TestSecondDevice fills a volume, lets it grow onto a second device under a
// running writer, and mounts it again: with both, and not without the second.
func TestSecondDevice(t *testing.T) {
	v := newVolume(t, deviceSize)
	second := sparse(t, filepath.Join(filepath.Dir(v.device), "second"), deviceSize)
	v.mount(t)
	sums := map[string]uint32{}
	before := fillFiles(t, v, "before", sums)

	// A full volume refuses, and goes on as soon as there is more of it.
	var writing sync.WaitGroup
	var waited, stop atomic.Bool
	written := make(chan error, 1)
	writing.Go(func() {
		block := bytes.Repeat([]byte{7}, 1<<20)
		f, err := os.Create(v.path("during"))
		for err == nil && !stop.Load() {
			if _, err = f.Write(block); errors.Is(err, syscall.ENOSPC) {
				waited.Store(true)
				err = nil
			}
			if info, serr := f.Stat(); serr == nil && info.Size() >= 20<<20 {
				break
			}
		}
		written <- errors.Join(err, f.Close())
	})
	defer func() { stop.Store(true); writing.Wait() }()
	eventually(t, "the writer finds the volume full", waited.Load)
	r := mustNVFS(t, "grow", v.mnt, second)
	if !strings.Contains(r.stdout, "2 devices") {
		t.Errorf("grow said: %v", r)
	}
	if err := <-written; err != nil {
		t.Fatalf("the writer met %v", err)
	}
	mustNVFS(t, "grow", v.mnt, second) // once more is no error, and changes nothing
	if n := fillFiles(t, v, "after", sums); n == 0 || before == 0 {
		t.Errorf("%d files on one device, %d more on two", before, n)
	}
	wantFiles(t, v, sums)
	v.unmount(t)

	wantCode(t, nvfs(t, "fsck", "-n", v.device, second), fsck.ExitClean)
	for _, refused := range [][]string{
		{"mount", "-o", "emulated", v.device, v.mnt},
		{"mount", "-o", "emulated", second, v.mnt},
		{"mount", "-o", "emulated,device=" + v.device, second, v.mnt},
		{"mount", "-o", "emulated,device=" + second + ",device=" + second, v.device, v.mnt},
		{"fsck", "-n", v.device},
		{"fsck", "-n", second},
		{"mkfs", second},
	} {
		r := nvfs(t, refused...)
		if r.code == 0 || !strings.Contains(r.stderr, "device") && !strings.Contains(r.stderr, "twice") {
			t.Errorf("%v: %v", refused, r)
		}
	}
	wantCode(t, nvfs(t, "fsck", "-n", v.device, second), fsck.ExitClean)

	v.mount(t, "device="+second)
	wantFiles(t, v, sums)
	v.unmount(t)

	// A destroyed label is restored from the device table.
	f, err := os.OpenFile(second, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := nvfs(t, "mount", "-o", "emulated,device="+second, v.device, v.mnt); r.code == 0 || !strings.Contains(r.stderr, "fsck --repair") {
		t.Errorf("mounted with a device without a label: %v", r)
	}
	wantCode(t, nvfs(t, "fsck", "-n", v.device, second), fsck.ExitErrors)
	wantCode(t, nvfs(t, "fsck", "--repair", v.device, second), fsck.ExitRepaired)
	v.mount(t, "device="+second)
	wantFiles(t, v, sums)
	v.unmount(t)
}

// wantCode wants an exit code.
func wantCode(t *testing.T, r result, code int) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d: %v", r.code, code, r)
	}
}

// fillFiles writes files of 1 MiB until the volume is full, and returns how
// many fit.
func fillFiles(t *testing.T, v testVolume, prefix string, sums map[string]uint32) int {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, uint64(len(sums))))
	for n := 0; ; n++ {
		content := make([]byte, 1<<20)
		for i := range content {
			content[i] = byte(rnd.Uint32())
		}
		name := fmt.Sprintf("%s-%d", prefix, n)
		err := os.WriteFile(v.path(name), content, 0o600)
		if errors.Is(err, syscall.ENOSPC) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		sums[name] = crc32.ChecksumIEEE(content)
	}
}

func wantFiles(t *testing.T, v testVolume, sums map[string]uint32) {
	t.Helper()
	for name, want := range sums {
		if content, err := os.ReadFile(v.path(name)); err != nil || crc32.ChecksumIEEE(content) != want {
			t.Errorf("%s is not what was written: %v", name, err)
		}
	}
}
