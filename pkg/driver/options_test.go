package driver

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestOptions(t *testing.T) {
	o := DefaultOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse([]string{"--node-id=n1", "--endpoint=unix:///run/x.sock", "--erase-wait=1m", "--register"}); err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	if path, err := o.socketPath(); err != nil || path != "/run/x.sock" || o.EraseWait.Minutes() != 1 || !o.Register {
		t.Errorf("options %+v, socket %s, %v", o, path, err)
	}
}

func TestBadOptionsAreAllNamed(t *testing.T) {
	o := Options{Endpoint: "tcp://1.2.3.4:5", NodeID: strings.Repeat("n", 64), StateDir: "state", KubeletDir: "", KubeletEndpoint: "x", EraseWait: -1}
	err := o.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, flag := range []string{"--endpoint", "--node-id", "--state-dir", "--kubelet-dir", "--kubelet-endpoint", "--erase-wait"} {
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("%q does not mention %s", err, flag)
		}
	}
	for _, bad := range []string{"", "x.sock", "unix://x.sock", "unix:///" + strings.Repeat("x", 107)} {
		o := Options{Endpoint: bad}
		if path, err := o.socketPath(); err == nil {
			t.Errorf("endpoint %q is accepted as %s", bad, path)
		}
	}
}
