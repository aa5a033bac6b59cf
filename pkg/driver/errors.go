package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// codedError is an error that knows its gRPC code. Its text is what a user
// sees in "kubectl describe", so it carries the remedy.
type codedError struct {
	code codes.Code
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// errorf formats an error with a gRPC code. A code inside args gives way.
func errorf(code codes.Code, format string, args ...any) error {
	return &codedError{code: code, err: fmt.Errorf(format, args...)}
}

func invalidArgument(format string, args ...any) error {
	return errorf(codes.InvalidArgument, format, args...)
}

func failedPrecondition(format string, args ...any) error {
	return errorf(codes.FailedPrecondition, format, args...)
}

// reasons are several errors on one line, as gRPC messages are shown.
type reasons []error

// joinReasons returns an error of all that are not nil, or nil.
func joinReasons(errs ...error) error {
	var all reasons
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

func (r reasons) Error() string {
	var texts []string
	for _, err := range r {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

func (r reasons) Unwrap() []error { return r }

// errNoVolume says that neither a record nor a namespace of the volume exists
// on this node.
var errNoVolume = errors.New("no such volume on this node")

// codeOf is the one place that maps errors to gRPC codes.
func codeOf(err error) codes.Code {
	var coded *codedError
	var noSpace *ndctl.NoSpaceError
	switch {
	case err == nil:
		return codes.OK
	case errors.As(err, &coded):
		return coded.code
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, errNoVolume):
		return codes.NotFound
	case errors.As(err, &noSpace):
		return codes.ResourceExhausted
	case errors.Is(err, ndctl.ErrLost), errors.Is(err, ndctl.ErrBusy), errors.Is(err, ndctl.ErrUnsupported),
		errors.Is(err, mountd.ErrBusy), errors.Is(err, mountd.ErrInUse):
		return codes.FailedPrecondition
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Internal
}

// toStatus turns any error into one that gRPC passes on unchanged.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codeOf(err), err.Error())
}
