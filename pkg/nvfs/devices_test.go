package nvfs_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

const deviceSize = 20 << 20

// deviceFiles makes files that stand for devices, on tmpfs.
func deviceFiles(t *testing.T, names ...string) []string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nvfs-devices-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	var paths []string
	for _, name := range names {
		path := filepath.Join(dir, name)
		f, err := os.Create(path)
		if err == nil {
			err = errors.Join(f.Truncate(deviceSize), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func openDevices(t *testing.T, opt nvfs.OpenOptions, paths ...string) *pmem.Mapping {
	t.Helper()
	m, err := nvfs.OpenDevices(paths[0], paths[1:], opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// growOnto grows a mounted volume onto a file, as the serving process does.
func growOnto(m *pmem.Mapping, fs *nvfs.FS, path string) error {
	var uuid [16]byte
	part, err := m.AttachAt(path, func(c *pmem.Candidate) (_ uint64, err error) {
		uuid, err = mkfs.UsableMember(context.Background(), c, fs.Superblock())
		return fs.PlaceDevice(c.Backing.Align), err
	})
	if err == nil {
		if _, err = fs.GrowOnto(part, uuid); err != nil {
			err = errors.Join(err, m.Detach(part.Off))
		}
	}
	return err
}

// makeVolume makes a volume over all of the files, with some content.
func makeVolume(t *testing.T, paths ...string) string {
	t.Helper()
	m := openDevices(t, nvfs.OpenOptions{}, paths[0])
	format(t, m, mkfs.Options{})
	v := mount(t, m, nil)
	for _, path := range paths[1:] {
		before := v.totals()
		if err := growOnto(m, v.fs, path); err != nil {
			t.Fatal(err)
		}
		if now := v.totals(); now.Blocks <= before.Blocks || now.BlocksFree-before.BlocksFree != now.Blocks-before.Blocks || now.FilesFree <= before.FilesFree {
			t.Fatalf("totals went from %+v to %+v", before, now)
		}
	}
	if have, want := v.fs.SizeBytes(), uint64(len(paths)*deviceSize); have != want {
		t.Errorf("size %d, want %d", have, want)
	}
	if err := prepareTree(v); err != nil {
		t.Fatal(err)
	}
	filler, err := v.create(nvfs.RootID, "filler", unix.S_IFDIR|0755)
	if err != nil {
		t.Fatal(err)
	}
	fillData(t, v, filler)
	dump, err := v.dump()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(v.unmount(), m.Close()); err != nil {
		t.Fatal(err)
	}
	return dump
}

// TestDevices makes a volume of three devices and mounts it with them in any
// order.
func TestDevices(t *testing.T) {
	p := deviceFiles(t, "one", "two", "three")
	want := makeVolume(t, p...)
	for _, order := range [][]string{{p[0], p[1], p[2]}, {p[0], p[2], p[1]}} {
		m := openDevices(t, nvfs.OpenOptions{}, order...)
		v := mount(t, m, nil)
		if have, err := v.dump(); err != nil || have != want {
			t.Errorf("%v: %v\n%s", order, err, diffLines(have, want))
		}
		if size, err := v.fs.Grow(); err != nil || size != 3*deviceSize {
			t.Errorf("growth in place of a volume of several devices: %d, %v", size, err)
		}
		if err := errors.Join(v.unmount(), m.Close()); err != nil {
			t.Fatal(err)
		}
	}
	m := openDevices(t, nvfs.OpenOptions{Options: pmem.Options{ReadOnly: true}}, p...)
	v := mount(t, m, nil)
	if have, err := v.dump(); err != nil || have != want {
		t.Errorf("read-only: %v\n%s", err, diffLines(have, want))
	}
	if err := errors.Join(v.unmount(), m.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestWrongDevices gives what is not the volume, or not all of it. Each is an
// error that says what to do, and nothing is stored.
func TestWrongDevices(t *testing.T) {
	p := deviceFiles(t, "one", "two", "three", "other-one", "other-two", "blank", "junk", "copy", "short", "unlabelled")
	makeVolume(t, p[:3]...)
	makeVolume(t, p[3:5]...)
	one, two, three, otherOne, otherTwo, blank, junk, copied, short, unlabelled := p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9]
	content := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	write := func(path string, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(junk, []byte(strings.Repeat("junk", deviceSize/4)))
	write(copied, content(two))
	write(short, content(two)[:deviceSize-4096])
	bare := content(two)
	clear(bare[:layout.MemberSize])
	write(unlabelled, bare)

	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	before := map[string]uint32{}
	for _, path := range p {
		before[path] = crc32.Checksum(content(path), castagnoli)
	}
	for _, c := range []struct {
		name  string
		paths []string
		want  error
		text  string
	}{
		{"only the first", []string{one}, nvfs.ErrMissing, "device 2"},
		{"the second missing", []string{one, three}, nvfs.ErrMissing, "device 2"},
		{"the third missing", []string{one, two}, nvfs.ErrMissing, "device 3"},
		{"the third blank", []string{one, two, blank}, nvfs.ErrMissing, "device 3"},
		{"given twice", []string{one, two, two}, pmem.ErrAttached, two},
		{"the first given twice", []string{one, two, three, one}, pmem.ErrAttached, one},
		{"a copy beside the original", []string{one, two, three, copied}, nvfs.ErrForeign, "copy"},
		{"of another volume", []string{one, otherTwo, three}, nvfs.ErrForeign, "device 2 of NVFS volume"},
		{"another volume", []string{one, two, otherOne}, nvfs.ErrForeign, "first device"},
		{"junk", []string{one, two, junk}, nvfs.ErrForeign, "label"},
		{"cut", []string{one, short, three}, nvfs.ErrTruncated, "full size"},
		{"no label any more", []string{one, unlabelled, three}, nvfs.ErrForeign, "fsck --repair"},
		{"a further device first", []string{two, one, three}, layout.ErrMember, "give the first device"},
		{"a further device alone", []string{two}, layout.ErrMember, "this is device 2 of NVFS volume"},
		{"no file", []string{one, two, three + "-none"}, os.ErrNotExist, "none"},
	} {
		for _, readOnly := range []bool{false, true} {
			err := func() error {
				m, err := nvfs.OpenDevices(c.paths[0], c.paths[1:], nvfs.OpenOptions{Options: pmem.Options{ReadOnly: readOnly}})
				if err != nil {
					return err
				}
				fs, err := nvfs.Mount(m, nvfs.Options{})
				if err == nil {
					err = errors.Join(errors.New("it was mounted"), fs.Unmount())
				}
				return errors.Join(err, m.Close())
			}()
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v; want %v that tells of %q", c.name, err, c.want, c.text)
			}
		}
	}
	for path, sum := range before {
		if crc32.Checksum(content(path), castagnoli) != sum {
			t.Errorf("%s was stored to", path)
		}
	}

	// fsck takes the device without a label for what the rest of it proves, and
	// restores the label.
	for _, want := range []int{fsck.ExitRepaired, fsck.ExitClean} {
		m := openDevices(t, nvfs.OpenOptions{Damaged: true}, one, unlabelled, three)
		r, err := fsck.Repair(context.Background(), m, fsck.Options{})
		if err != nil || r.ExitCode() != want {
			t.Errorf("%v: %v, exit code %d, want %d", err, r.Problems, r.ExitCode(), want)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGrowOntoRefuses: what is on a device must not be lost, nor may a device be
// too small or in use.
func TestGrowOntoRefuses(t *testing.T) {
	p := deviceFiles(t, "one", "two", "junk", "small", "volume", "fresh")
	makeVolume(t, p[:2]...)
	makeVolume(t, p[4])
	if err := os.WriteFile(p[2], append(make([]byte, deviceSize-1), 'x'), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(p[3], 8<<20); err != nil {
		t.Fatal(err)
	}
	m := openDevices(t, nvfs.OpenOptions{}, p[:2]...)
	v := mount(t, m, nil)
	for path, text := range map[string]string{p[0]: "twice", p[1]: "twice", p[2]: "holds", p[3]: "too small", p[4]: "NVFS", p[5] + "-none": "no device"} {
		if err := growOnto(m, v.fs, path); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", path, err, text)
		}
	}
	if len(m.Parts()) != 2 || v.fs.SizeBytes() != 2*deviceSize {
		t.Errorf("%d devices, %d bytes", len(m.Parts()), v.fs.SizeBytes())
	}
	for _, off := range []uint64{deviceSize, 0, 1 << 50} {
		if _, err := v.fs.GrowOnto(pmem.Part{Off: off, Len: deviceSize}, [16]byte{}); err == nil {
			t.Errorf("grown onto a device at byte %d", off)
		}
	}
	if err := growOnto(m, v.fs, p[5]); err != nil {
		t.Error(err)
	}
	if err := errors.Join(v.unmount(), m.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestMostDevices: there are at most 16, and the error says so.
func TestMostDevices(t *testing.T) {
	var names []string
	for i := range layout.MaxDevices + 1 {
		names = append(names, fmt.Sprint(i))
	}
	p := deviceFiles(t, names...)
	m := openDevices(t, nvfs.OpenOptions{}, p[0])
	format(t, m, mkfs.Options{})
	v := mount(t, m, nil)
	for i, path := range p[1:] {
		err := growOnto(m, v.fs, path)
		if last := i == layout.MaxDevices-1; last != (err != nil) {
			t.Fatalf("device %d: %v", i+2, err)
		} else if last && !strings.Contains(err.Error(), "16 devices") {
			t.Error(err)
		}
	}
	if err := errors.Join(v.unmount(), m.Close()); err != nil {
		t.Fatal(err)
	}
}
