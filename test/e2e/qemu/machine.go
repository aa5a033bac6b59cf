//go:build qemu

package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/qemu/guestjob"
)

// labelSize is the part of an NVDIMM's file that holds the namespace labels.
const labelSize = 2 << 20

// nvdimm is one NVDIMM of a machine. There are two, on NUMA nodes 0 and 1.
type nvdimm struct {
	file      string // on the host; its size is that of the region and the labels
	size      int64  // bytes of the region; a power of two
	unarmed   bool   // as after the failure of its battery
	labelless bool
}

// create makes a file for the NVDIMM that reads as zero.
func (n nvdimm) create() error {
	f, err := os.OpenFile(n.file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(n.size+labelSize), f.Close())
}

// The values of machine.persistence: what survives a power cut.
const (
	memoryController = "mem-ctrl"
	cpuCaches        = "cpu"
)

// machine describes a guest.
type machine struct {
	images      images
	initramfs   string
	programs    string // image with the programs that the job runs
	accelerator string
	nvdimms     []nvdimm
	persistence string   // memoryController when empty
	modules     []string // guestModules when nil
	state       string   // image of a disk that outlives the guest, "" for none
	timeout     time.Duration
}

// boot runs the job in a new guest and returns its exit code. Every line that
// the job prints goes to out. Whatever happens, no process is left when boot
// returns; an error says that the job did not run to its end.
func (m machine) boot(ctx context.Context, dir string, job guestjob.Job, out io.Writer) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	jobDisk, console := filepath.Join(dir, "job.raw"), filepath.Join(dir, "console.log")
	if err := writeJob(jobDisk, job); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", m.arguments(jobDisk, console)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	port, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("%w: install qemu-system-x86 (test/setup.sh does)", err)
	}
	code, found := relay(port, out)
	err = cmd.Wait()
	switch {
	case found:
		return code, nil
	case ctx.Err() != nil:
		err = fmt.Errorf("the guest did not end within %v", m.timeout)
	case err == nil:
		err = errors.New("the guest ended before its job did")
	}
	log, _ := os.ReadFile(console)
	return 0, fmt.Errorf("%w\nqemu: %s\nend of the console:\n%s", err, complaints.String(), lastLines(string(log), 30))
}

// relay copies lines to out until the guest's port is closed, and returns the
// exit code that it reported.
func relay(port io.Reader, out io.Writer) (code int, found bool) {
	lines := bufio.NewReader(port)
	for {
		line, err := lines.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if text, isExit := strings.CutPrefix(line, guestjob.ExitPrefix); isExit {
			n, convErr := strconv.Atoi(text)
			code, found = n, convErr == nil
		} else if line != "" {
			fmt.Fprintln(out, line)
		}
		if err != nil {
			return code, found
		}
	}
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (m machine) arguments(jobDisk, console string) []string {
	persistence := m.persistence
	if persistence == "" {
		persistence = memoryController
	}
	args := []string{
		"-M", "q35,nvdimm=on,hmat=off,nvdimm-persistence=" + persistence,
		"-smp", "2,sockets=2,cores=1", "-m", "2G,slots=8,maxmem=32G",
		"-object", "memory-backend-memfd,id=m0,size=1G,share=on", "-object", "memory-backend-memfd,id=m1,size=1G,share=on",
		"-numa", "node,nodeid=0,cpus=0,memdev=m0", "-numa", "node,nodeid=1,cpus=1,memdev=m1", "-numa", "dist,src=0,dst=1,val=21",
		"-nodefaults", "-display", "none", "-no-reboot", "-device", "virtio-rng-pci",
		"-serial", "file:" + console, "-serial", "stdio",
		"-drive", "format=raw,if=virtio,snapshot=on,file=" + m.images.root,
		"-drive", "format=raw,if=virtio,readonly=on,file=" + m.programs,
		"-drive", "format=raw,if=virtio,readonly=on,file=" + jobDisk,
		"-kernel", m.images.kernel, "-initrd", m.initramfs,
		// Expedited grace periods: mounts and namespaces wait for many of them.
		"-append", "console=ttyS0 panic=-1 quiet tsc=reliable nokaslr mitigations=off rcupdate.rcu_expedited=1",
	}
	args = append(args, acceleratorArguments(m.accelerator)...)
	if m.state != "" {
		args = append(args, "-drive", "format=raw,if=virtio,file="+m.state)
	}
	for i, n := range m.nvdimms {
		args = append(args, n.arguments(i)...)
	}
	return args
}

func (n nvdimm) arguments(node int) []string {
	// A region that does not start at a multiple of its own size cannot be
	// divided up to its end.
	object := fmt.Sprintf("memory-backend-file,id=nv%d,share=on,mem-path=%s,size=%d,align=%d", node, n.file, n.size+labelSize, n.size)
	device := fmt.Sprintf("nvdimm,id=nvdimm%d,memdev=nv%d,node=%d", node, node, node)
	if !n.labelless {
		device += fmt.Sprintf(",label-size=%d", labelSize)
	}
	if n.unarmed {
		device += ",unarmed=on"
	}
	return []string{"-object", object, "-device", device}
}
