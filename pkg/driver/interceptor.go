package driver

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"
)

// The verbosity at which calls are logged; those that the orchestrator makes
// all the time say nothing below chatterLevel.
const (
	requestLevel = 4
	chatterLevel = 6
)

var chatter = []string{
	csi.Identity_Probe_FullMethodName,
	csi.Identity_GetPluginInfo_FullMethodName,
	csi.Identity_GetPluginCapabilities_FullMethodName,
	csi.Controller_ControllerGetCapabilities_FullMethodName,
	csi.Controller_GetCapacity_FullMethodName,
	csi.Node_NodeGetCapabilities_FullMethodName,
	csi.Node_NodeGetVolumeStats_FullMethodName,
}

// intercept surrounds every call: metrics, log, and errors with a code.
func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	level := klog.Level(requestLevel)
	if slices.Contains(chatter, info.FullMethod) {
		level = chatterLevel
	}
	klog.V(level).InfoS("Call", "method", info.FullMethod, "request", protosanitizer.StripSecrets(req))
	start := time.Now()
	response, err = guard(ctx, req, handler)
	logError(info.FullMethod, req, err)
	err = toStatus(err)
	d.metrics.operations.RecordMetrics(info.FullMethod, err, time.Since(start))
	if err == nil {
		klog.V(level).InfoS("Reply", "method", info.FullMethod, "response", protosanitizer.StripSecrets(response))
	}
	return response, err
}

// guard turns a panic of one call into the error of that call.
func guard(ctx context.Context, req any, handler grpc.UnaryHandler) (response any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errorf(codes.Internal, "panic: %v", p)
			klog.ErrorS(err, "Panic", "stack", string(debug.Stack()))
		}
	}()
	return handler(ctx, req)
}

// logError logs an error once. Aborted and NotFound are part of the protocol's
// daily life.
func logError(method string, req any, err error) {
	if err == nil {
		return
	}
	keys := []any{"method", method, "code", codeOf(err).String()}
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		keys = append(keys, "volumeID", r.GetVolumeId())
	} else if r, ok := req.(interface{ GetName() string }); ok {
		keys = append(keys, "volumeID", volumeIDFor(r.GetName()), "name", r.GetName())
	}
	switch codeOf(err) {
	case codes.Aborted, codes.NotFound:
		klog.V(2).InfoS("Call refused", append(keys, "reason", fmt.Sprint(err))...)
	default:
		klog.ErrorS(err, "Call failed", keys...)
	}
}
