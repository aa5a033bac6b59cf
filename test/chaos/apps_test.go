package chaos

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// app is an application that uses a volume until it is told to stop. It ends
// with the first error that it sees.
type app struct {
	name string
	run  func(stop <-chan struct{}) error
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// fio writes and verifies, again and again.
func fio(dir string) app {
	return app{"fio", func(stop <-chan struct{}) error {
		for round := 0; !stopped(stop); round++ {
			mode := []string{"write", "randwrite", "rw", "randrw"}[round%4]
			direct := fmt.Sprint(round / 4 % 2)
			cmd := exec.Command("fio", "--name=job", "--directory="+dir, "--rw="+mode, "--bsrange=4k-64k", "--size=12M", "--numjobs=2",
				"--ioengine=psync", "--direct="+direct, "--fallocate=none", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64",
				"--verify_state_save=0", "--randrepeat=0", "--output-format=terse")
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("round %d (%s, direct %s): %w\n%s", round, mode, direct, err, out)
			}
		}
		return nil
	}}
}

// pauses are how long single small operations took.
type pauses struct {
	mu  sync.Mutex
	max time.Duration // of the operations that ended since mark
}

func (p *pauses) note(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.max = max(p.max, d)
}

// mark begins a new measurement, and returns the longest operation of the last
// one.
func (p *pauses) mark() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.max
	p.max = 0
	return m
}

// probe writes and reads one block, over and over, and measures.
func probe(file string, p *pauses) app {
	return app{"probe", func(stop <-chan struct{}) (err error) {
		f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_SYNC, 0o600)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		var out, in [512]byte
		for i := uint64(1); !stopped(stop); i++ {
			binary.LittleEndian.PutUint64(out[:], i)
			begin := time.Now()
			if _, err := f.WriteAt(out[:], 0); err != nil {
				return err
			}
			p.note(time.Since(begin))
			if _, err := f.ReadAt(in[:], 0); err != nil {
				return err
			}
			if in != out {
				return fmt.Errorf("read %d where %d was written", binary.LittleEndian.Uint64(in[:]), i)
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	}}
}

// orphan keeps deleted files open, and goes on writing and reading them.
func orphan(dir string, seed uint64) app {
	return app{"orphan", func(stop <-chan struct{}) (err error) {
		r := rand.New(rand.NewPCG(seed, 1))
		var held []*deleted
		defer func() {
			for _, d := range held {
				err = errors.Join(err, d.f.Close())
			}
		}()
		for i := 0; !stopped(stop); i++ {
			if len(held) < 6 {
				d, err := newDeleted(filepath.Join(dir, fmt.Sprintf("deleted %d", i)))
				if err != nil {
					return err
				}
				held = append(held, d)
			}
			at := r.IntN(len(held))
			if err := held[at].use(r); err != nil {
				return err
			}
			if r.IntN(20) == 0 {
				if err := held[at].f.Close(); err != nil {
					return err
				}
				held = slices.Delete(held, at, at+1)
			}
		}
		return nil
	}}
}

// deleted is an open file without a name, and what is in it.
type deleted struct {
	f       *os.File
	content []byte
}

func newDeleted(name string) (*deleted, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &deleted{f: f}, os.Remove(name)
}

// use changes a piece of the file and compares the whole of it.
func (d *deleted) use(r *rand.Rand) error {
	piece := make([]byte, 1+r.IntN(20000))
	for i := range piece {
		piece[i] = byte(r.Uint32())
	}
	off := r.IntN(40000)
	if _, err := d.f.WriteAt(piece, int64(off)); err != nil {
		return fmt.Errorf("write a deleted file: %w", err)
	}
	if need := off + len(piece); need > len(d.content) {
		d.content = append(d.content, make([]byte, need-len(d.content))...)
	}
	copy(d.content[off:], piece)
	got := make([]byte, len(d.content))
	if _, err := d.f.ReadAt(got, 0); err != nil {
		return fmt.Errorf("read a deleted file: %w", err)
	}
	if !bytes.Equal(got, d.content) {
		return errors.New("a deleted file has changed")
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(d.f.Fd()), &st); err != nil || st.Nlink != 0 {
		return fmt.Errorf("a deleted file has %d links: %w", st.Nlink, err)
	}
	return nil
}

// cycle mounts and unmounts a volume, and finds what it left there.
func cycle(v *volume) app {
	return app{"cycle", func(stop <-chan struct{}) error {
		for i := 0; !stopped(stop); i++ {
			if err := v.up(); err != nil {
				return err
			}
			v.enter(phaseUsed)
			if err := count(filepath.Join(v.target, "count"), i); err != nil {
				return errors.Join(err, v.down())
			}
			if err := v.down(); err != nil {
				return err
			}
		}
		return nil
	}}
}

// count wants a file to hold what the last round left, and leaves its own
// number. It leaves the file to other programs: what mustUp says of the first
// request of a kind goes for each round here, and this process must never wait for
// a server that it is about to bring back.
func count(name string, round int) error {
	if round > 0 {
		if b, err := exec.Command("cat", name).Output(); err != nil || string(b) != strconv.Itoa(round-1) {
			return fmt.Errorf("round %d finds %q, %w", round, b, err)
		}
	}
	out, err := exec.Command("sh", "-c", `printf %s "$1" >"$0"`, name, strconv.Itoa(round)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("round %d: %w: %s", round, err, out)
	}
	return nil
}
