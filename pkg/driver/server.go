package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

// stopTimeout is how long calls that are running may take when the driver
// stops.
const stopTimeout = 10 * time.Second

// serve serves the CSI socket, and the registration socket if it is wanted,
// until ctx ends or one of them fails.
func (d *Driver) serve(ctx context.Context) error {
	path, err := d.options.socketPath()
	if err != nil {
		return err
	}
	listener, err := listen(path)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csi.RegisterIdentityServer(server, &identityServer{d: d})
	csi.RegisterControllerServer(server, &controllerServer{d: d})
	csi.RegisterNodeServer(server, &nodeServer{d: d})
	klog.InfoS("Serving CSI", "driver", Name, "version", d.options.Version, "node", d.options.NodeID, "socket", path)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serveUntil(ctx, server, listener) })
	if d.options.Register {
		group.Go(func() error { return d.serveRegistration(ctx) })
	}
	return group.Wait()
}

// listen listens on a Unix socket. A socket that somebody serves is not taken
// over; one that nobody serves is a leftover.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := removeStaleSocket(path); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	return listener, nil
}

func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket; remove it or choose another endpoint", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		return errors.Join(fmt.Errorf("socket %s is served by another process; stop it first", path), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("socket %s: cannot tell whether it is served: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("stale socket: %w", err)
	}
	return nil
}

// serveUntil serves until ctx ends, and then lets running calls finish for a
// while.
func serveUntil(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	force := time.AfterFunc(stopTimeout, server.Stop)
	defer force.Stop()
	server.GracefulStop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	return nil
}
