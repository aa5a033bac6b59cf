package driver

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// captureLog returns what f logs at verbosity v.
func captureLog(t *testing.T, v string, f func()) string {
	t.Helper()
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	var log bytes.Buffer
	for name, value := range map[string]string{"v": v, "logtostderr": "false", "stderrthreshold": "FATAL", "one_output": "true"} {
		if err := flags.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	klog.SetOutput(&log)
	f()
	klog.Flush()
	for name, value := range map[string]string{"v": "0", "logtostderr": "true"} {
		if err := flags.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	return log.String()
}

func TestInterceptor(t *testing.T) {
	d := &Driver{}
	d.metrics = newMetrics(d)
	call := func(method string, req any, handler grpc.UnaryHandler) error {
		_, err := d.intercept(context.Background(), req, &grpc.UnaryServerInfo{FullMethod: method}, handler)
		return err
	}
	fine := func(context.Context, any) (any, error) { return &csi.ProbeResponse{}, nil }

	log := captureLog(t, "4", func() {
		req := &csi.CreateVolumeRequest{Name: "pvc-1", Secrets: map[string]string{"key": "top-secret"}}
		if err := call(csi.Controller_CreateVolume_FullMethodName, req, fine); err != nil {
			t.Error(err)
		}
		if err := call(csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, fine); err != nil {
			t.Error(err)
		}
	})
	if strings.Contains(log, "top-secret") || !strings.Contains(log, "pvc-1") || strings.Contains(log, "Probe") {
		t.Errorf("log of requests:\n%s", log)
	}

	log = captureLog(t, "0", func() {
		err := call(csi.Node_NodeStageVolume_FullMethodName, &csi.NodeStageVolumeRequest{VolumeId: "vol-1"}, func(context.Context, any) (any, error) {
			return nil, errors.New("boom")
		})
		if status.Code(err) != codes.Internal {
			t.Errorf("error %v", err)
		}
	})
	if strings.Count(log, "boom") != 1 || !strings.Contains(log, `volumeID="vol-1"`) {
		t.Errorf("log of an error:\n%s", log)
	}

	captureLog(t, "0", func() {
		err := call(csi.Node_NodeStageVolume_FullMethodName, &csi.NodeStageVolumeRequest{}, func(context.Context, any) (any, error) {
			panic("unexpected")
		})
		if status.Code(err) != codes.Internal {
			t.Errorf("panic became %v", err)
		}
	})
}
