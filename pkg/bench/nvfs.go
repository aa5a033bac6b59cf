package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// NVFS is the filesystem of this project, in one flush and cache mode and with
// one transport, served by a process of its own as in production.
type NVFS struct {
	Exe   string // the nvfs-csi binary
	Flush string // a flush mode
	Cache string // a cache mode
	// Transport is dev or uring; "" is dev.
	Transport string
}

// Name implements Filesystem.
func (n NVFS) Name() string { return "nvfs " + n.Flush + "/" + n.Cache + transportSuffix(n.Transport) }

// transportSuffix names a transport that is not the default.
func transportSuffix(transport string) string {
	if transport == "" || transport == "dev" {
		return ""
	}
	return " " + transport
}

// Kind implements Filesystem.
func (NVFS) Kind() Kind { return KindNVFS }

// Mount implements Filesystem.
func (n NVFS) Mount(ctx context.Context, dir string, size int64) (m *Mounted, err error) {
	image, mnt := filepath.Join(dir, "pmem"), filepath.Join(dir, "mnt")
	spec := mountd.Spec{
		VolumeID: "bench", Path: image, Mountpoint: mnt, Flush: n.Flush, Cache: n.Cache, Transport: n.Transport,
		Emulated: true, NUMANode: -1, AllowOther: true,
	}
	launcher := mountd.NewLauncher(mountd.LauncherOptions{
		Executable: n.Exe, StateDir: filepath.Join(dir, "run"), LogDir: filepath.Join(dir, "run", "log")})
	m = &Mounted{Name: n.Name(), Dir: mnt, image: image,
		attach: func(ctx context.Context, m *Mounted) error { return launch(ctx, launcher, spec, m) },
		detach: func(ctx context.Context) error { return launcher.Unmount(ctx, spec.VolumeID, mnt) },
		remove: func() error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "run")), os.RemoveAll(mnt), os.RemoveAll(image))
		},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.remove())
		}
	}()
	if err := createImage(ctx, image, size); err != nil {
		return nil, err
	}
	if err := os.Mkdir(mnt, 0o700); err != nil {
		return nil, err
	}
	if err := run(ctx, n.Exe, "mkfs", image); err != nil {
		return nil, err
	}
	if err := m.attach(ctx, m); err != nil {
		return nil, err
	}
	return m, nil
}

// launch mounts a volume and notes who serves it and how.
func launch(ctx context.Context, launcher *mountd.Launcher, spec mountd.Spec, m *Mounted) error {
	if err := launcher.Mount(ctx, spec); err != nil {
		return err
	}
	status, err := launcher.Status(ctx, spec.VolumeID)
	if err != nil {
		return errors.Join(err, launcher.Unmount(context.WithoutCancel(ctx), spec.VolumeID, spec.Mountpoint))
	}
	m.ServerPID, m.Note = status.PID, status.Flush
	return nil
}

// NullFUSE is a FUSE filesystem on the same transport that keeps its metadata
// in ordinary memory, but copies and fences the data: the floor under NVFS.
type NullFUSE struct {
	Exe       string // the nvfs-csi binary
	Transport string // as in NVFS
}

// Name implements Filesystem.
func (n NullFUSE) Name() string { return nullName + transportSuffix(n.Transport) }

const nullName = "null FUSE"

// Kind implements Filesystem.
func (NullFUSE) Kind() Kind { return KindFloor }

// Mount implements Filesystem.
func (n NullFUSE) Mount(ctx context.Context, dir string, size int64) (*Mounted, error) {
	image, mnt := filepath.Join(dir, "pmem"), filepath.Join(dir, "mnt")
	if err := createImage(ctx, image, size); err != nil {
		return nil, errors.Join(err, os.RemoveAll(image))
	}
	if err := os.Mkdir(mnt, 0o700); err != nil {
		return nil, errors.Join(err, os.Remove(image))
	}
	server, err := n.start(ctx, image, mnt)
	if err != nil {
		return nil, errors.Join(err, os.Remove(mnt), os.Remove(image))
	}
	return &Mounted{Name: n.Name(), Dir: mnt, ServerPID: server.cmd.Process.Pid, image: image,
		detach: func(ctx context.Context) error {
			if err := run(ctx, "umount", mnt); err != nil {
				return err
			}
			return server.wait(ctx)
		},
		remove: func() error { return errors.Join(os.Remove(mnt), os.Remove(image)) },
	}, nil
}

// nullServer is a child that serves a null filesystem.
type nullServer struct {
	cmd    *exec.Cmd
	exited chan error
}

// nullReady is the line with which it says that it answers.
const nullReady = "ready"

const nullStartTimeout = 20 * time.Second

func (n NullFUSE) start(ctx context.Context, image, mnt string) (*nullServer, error) {
	cmd := exec.Command(n.Exe, "bench", "serve-null", "--transport", cmp.Or(n.Transport, "dev"), image, mnt)
	// Ctrl-C is for the parent, which unmounts.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the null filesystem: %w", err)
	}
	line := make(chan string, 1)
	s := &nullServer{cmd: cmd, exited: make(chan error, 1)}
	go func() {
		// Wait closes the pipe, so it comes after the reading.
		text, _ := bufio.NewReader(stdout).ReadString('\n')
		line <- strings.TrimSpace(text)
		s.exited <- cmd.Wait()
	}()
	timer := time.NewTimer(nullStartTimeout)
	defer timer.Stop()
	select {
	case text := <-line:
		if text == nullReady {
			return s, nil
		}
		return nil, fmt.Errorf("the null filesystem did not start: %w: %s", <-s.exited, strings.TrimSpace(stderr.String()))
	case <-timer.C:
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill() // it may have ended by itself
	<-s.exited
	return nil, errors.Join(fmt.Errorf("the null filesystem is not ready after %s", nullStartTimeout), ctx.Err())
}

// wait returns when the process has ended.
func (s *nullServer) wait(ctx context.Context) error {
	select {
	case err := <-s.exited:
		if err != nil {
			return fmt.Errorf("the null filesystem: %w", err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("process %d still serves the null filesystem: %w", s.cmd.Process.Pid, ctx.Err())
	}
}
