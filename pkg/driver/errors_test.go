package driver

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

func TestCodes(t *testing.T) {
	for _, test := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.OK},
		{errors.New("x"), codes.Internal},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{fmt.Errorf("x: %w", context.Canceled), codes.Canceled},
		{fmt.Errorf("x: %w", &ndctl.NoSpaceError{}), codes.ResourceExhausted},
		{fmt.Errorf("x: %w", ndctl.ErrLost), codes.FailedPrecondition},
		{fmt.Errorf("x: %w", mountd.ErrBusy), codes.FailedPrecondition},
		{fmt.Errorf("x: %w", errNoVolume), codes.NotFound},
		{errorf(codes.Aborted, "outer: %w", invalidArgument("inner")), codes.Aborted},
		{errors.Join(nil, invalidArgument("x")), codes.InvalidArgument},
		{status.Error(codes.Unavailable, "x"), codes.Unavailable},
	} {
		if got := codeOf(test.err); got != test.want {
			t.Errorf("%v: %s, want %s", test.err, got, test.want)
		}
		if got := status.Code(toStatus(test.err)); got != test.want {
			t.Errorf("status of %v: %s, want %s", test.err, got, test.want)
		}
	}
}

func TestInflight(t *testing.T) {
	var f inflight
	end, err := f.begin("a", "CreateVolume")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.begin("a", "NodeStageVolume"); codeOf(err) != codes.Aborted {
		t.Errorf("second operation: %v, want Aborted", err)
	}
	endB, err := f.begin("b", "NodeStageVolume")
	if err != nil {
		t.Errorf("another volume: %v", err)
	}
	endB()
	end()
	if end, err = f.begin("a", "DeleteVolume"); err != nil {
		t.Errorf("after the end: %v", err)
	}
	end()
	if f.busy("a") {
		t.Error("still busy")
	}
}
