package mountd

import (
	"context"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// RequestStats are what the kernel has asked of a serving process.
type RequestStats = fusefs.RequestStats

// LatencyBucket is a part of RequestStats.
type LatencyBucket = fusefs.LatencyBucket

// requests implements controlTarget.
func (s *server) requests() []RequestStats {
	if c, ok := s.transport.(fusefs.RequestCounter); ok {
		return c.Requests()
	}
	return nil
}

// Requests implements Mounter.
func (l *Launcher) Requests(ctx context.Context, volumeID string) ([]RequestStats, error) {
	resp, err := askControl(ctx, l.opts.StateDir, volumeID, methodRequests)
	return resp.Requests, err
}
