package driver

import (
	"context"
	"sort"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"
)

// tokenPrefix begins the token of a page, which is followed by the ID of the
// last volume on the page before. So volumes may come and go between pages,
// that last one included.
const tokenPrefix = "after:"

// page cuts one page out of n items that are sorted by ID.
func page(n int, id func(i int) string, token string, maxEntries int32) (from, to int, next string, err error) {
	if maxEntries < 0 {
		return 0, 0, "", invalidArgument("max_entries %d is negative", maxEntries)
	}
	if token != "" {
		after, ok := strings.CutPrefix(token, tokenPrefix)
		if !ok || checkVolumeID(after) != nil {
			return 0, 0, "", errorf(codes.Aborted, "starting token %q is not one of ours; list again from the beginning", token)
		}
		from = sort.Search(n, func(i int) bool { return id(i) > after })
	}
	to = n
	if maxEntries > 0 && from+int(maxEntries) < n {
		to = from + int(maxEntries)
		next = tokenPrefix + id(to-1)
	}
	return from, to, next, nil
}

// ListVolumes lists the volumes that were handed out and are not deleted.
func (s *controllerServer) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	all, err := s.d.records.list()
	if all == nil && err != nil {
		return nil, err
	}
	if err != nil {
		klog.ErrorS(err, "Some volumes are missing in the list")
	}
	var ready []*record
	for _, r := range all {
		if r.Phase == phaseReady {
			ready = append(ready, r)
		}
	}
	from, to, next, err := page(len(ready), func(i int) string { return ready[i].ID }, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	response := &csi.ListVolumesResponse{NextToken: next}
	for _, r := range ready[from:to] {
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{Volume: s.d.csiVolume(r), Status: &csi.ListVolumesResponse_VolumeStatus{}})
	}
	return response, nil
}

// ControllerListVolumeHealth lists the volumes that are not healthy.
func (s *controllerServer) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	all, err := s.d.unhealthy(ctx)
	if err != nil {
		return nil, err
	}
	from, to, next, err := page(len(all), func(i int) string { return all[i].VolumeId }, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerListVolumeHealthResponse{Entries: all[from:to], NextToken: next}, nil
}
