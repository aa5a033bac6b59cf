package driver_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// runOnce runs a driver that is expected to fail by itself.
func runOnce(t *testing.T, n *node) error {
	t.Helper()
	d, err := driver.New(n.options, n.deps())
	if err != nil {
		t.Fatal(err)
	}
	return d.Run(t.Context())
}

func TestLiveSocketIsNotStolen(t *testing.T) {
	n := newNode(t)
	other := prepareNode(t, ndctl.Region{Name: "r0", Size: gib})
	other.options.Endpoint = n.options.Endpoint
	if err := runOnce(t, other); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("second driver on one socket: %v", err)
	}
	n.mustCreate("pvc-1") // the first one still works
}

func TestStaleSocketIsReplacedAndOtherFilesAreNot(t *testing.T) {
	n := prepareNode(t, ndctl.Region{Name: "r0", Size: gib, Emulated: true})
	path := strings.TrimPrefix(n.options.Endpoint, "unix://")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	n.ok(err)
	listener.SetUnlinkOnClose(false) // as a process leaves it that was killed
	n.ok(listener.Close())
	n.start()
	n.mustCreate("pvc-1")
	n.stop()
	n.ok(os.WriteFile(path, []byte("precious"), 0o600))
	if err := runOnce(t, n); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("ordinary file as socket: %v", err)
	}
	if data, _ := os.ReadFile(path); string(data) != "precious" {
		t.Error("the file is gone")
	}
}

func TestRegistration(t *testing.T) {
	n := prepareNode(t, ndctl.Region{Name: "r0", Size: gib, Emulated: true})
	n.options.Register = true
	n.options.KubeletEndpoint = "/var/lib/kubelet/plugins/csi.nvfs.dev/csi.sock"
	n.start()
	socket := filepath.Join(n.options.KubeletDir, "plugins_registry", "csi.nvfs.dev-reg.sock")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	n.ok(err)
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(t.Context(), &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	n.ok(err)
	if info.Type != registerapi.CSIPlugin || info.Name != driver.Name || info.Endpoint != n.options.KubeletEndpoint || len(info.SupportedVersions) == 0 {
		t.Errorf("info %v", info)
	}
	for _, registered := range []bool{true, false} {
		_, err = client.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: registered, Error: "version"})
		n.ok(err)
	}
	n.stop()
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the registration socket is left: %v", err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	n := prepareNode(t, ndctl.Region{Name: "r0", Size: gib, Emulated: true})
	d, err := driver.New(n.options, n.deps())
	n.ok(err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.ok(d.Run(ctx))
}
