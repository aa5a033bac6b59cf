package driver

import (
	"context"
	"errors"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// controllerServer is the CSI Controller service of one node: it checks
// requests and turns errors into statuses.
type controllerServer struct {
	csi.UnimplementedControllerServer
	d *Driver
}

func (s *controllerServer) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}}})
	}
	return response, nil
}

func (s *controllerServer) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	spec, err := s.d.parseCreate(req)
	if err != nil {
		return nil, err
	}
	end, err := s.d.inflight.begin(spec.id, "CreateVolume")
	if err != nil {
		return nil, err
	}
	defer end()
	r, err := s.d.create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: s.d.csiVolume(r)}, nil
}

// parseCreate checks a request completely before anything is looked at.
func (d *Driver) parseCreate(req *csi.CreateVolumeRequest) (volumeSpec, error) {
	if err := checkVolumeName(req.GetName()); err != nil {
		return volumeSpec{}, err
	}
	if req.GetVolumeContentSource() != nil {
		return volumeSpec{}, invalidArgument("volumes cannot be made from a snapshot or another volume; copy the data")
	}
	if len(req.GetMutableParameters()) > 0 {
		return volumeSpec{}, invalidArgument("mutable parameters (VolumeAttributesClass) are not supported; use StorageClass parameters")
	}
	params, err := ParseParams(OriginClass, req.GetParameters())
	if err != nil {
		return volumeSpec{}, err
	}
	if err := applyCapabilities(&params, req.GetVolumeCapabilities()); err != nil {
		return volumeSpec{}, err
	}
	size, err := parseSizeRange(req.GetCapacityRange())
	if err != nil {
		return volumeSpec{}, err
	}
	if size, err = size.complete(); err != nil {
		return volumeSpec{}, err
	}
	if size, err = params.leastSize(size); err != nil {
		return volumeSpec{}, err
	}
	if err := d.checkTopology(req.GetAccessibilityRequirements()); err != nil {
		return volumeSpec{}, err
	}
	return volumeSpec{id: volumeIDFor(req.GetName()), name: req.GetName(), label: labelFor(req), size: size, params: params}, nil
}

// applyCapabilities checks the capabilities; the provisioner moves the class's
// fstype into them.
func applyCapabilities(params *Params, capabilities []*csi.VolumeCapability) error {
	if len(capabilities) == 0 {
		return invalidArgument("volume capabilities are missing")
	}
	for i, c := range capabilities {
		access, err := parseCapability(c)
		if err != nil {
			return err
		}
		if i > 0 && access.block != (params.FSType == FSTypeBlock) {
			return invalidArgument("a volume cannot be both raw block and a filesystem")
		}
		switch {
		case access.block:
			params.FSType = FSTypeBlock
		case access.fsType != "":
			params.FSType = access.fsType
		}
	}
	return params.checkOffered()
}

func parseSizeRange(r *csi.CapacityRange) (sizeRange, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return sizeRange{}, invalidArgument("capacity range %d to %d is negative", required, limit)
	case limit > 0 && required > limit:
		return sizeRange{}, errorf(codes.OutOfRange, "required size of %d bytes is above the limit of %d bytes", required, limit)
	}
	return sizeRange{required: uint64(required), limit: uint64(limit)}, nil
}

// complete fills in the size of a volume that is to be created.
func (s sizeRange) complete() (sizeRange, error) {
	if s.limit != 0 && s.limit < minimumVolumeSize {
		return s, errorf(codes.OutOfRange, "a limit of %d bytes is below the smallest volume, %d bytes", s.limit, minimumVolumeSize)
	}
	if s.required == 0 {
		s.required = defaultVolumeSize
		if s.limit != 0 {
			s.required = min(s.required, s.limit)
		}
	}
	s.required = max(s.required, minimumVolumeSize)
	return s, nil
}

// checkTopology refuses volumes that must not be on this node. The code lets a
// provisioner with several candidates try the next one.
func (d *Driver) checkTopology(t *csi.TopologyRequirement) error {
	if len(t.GetRequisite()) == 0 && len(t.GetPreferred()) == 0 {
		return nil
	}
	terms := t.GetRequisite()
	if len(terms) == 0 {
		terms = t.GetPreferred()
	}
	for _, term := range terms {
		if d.inTopology(term) {
			return nil
		}
	}
	return errorf(codes.ResourceExhausted, "the volume must be accessible from %v, which is not node %s", terms, d.options.NodeID)
}

// inTopology reports whether this node satisfies all segments of the term.
func (d *Driver) inTopology(term *csi.Topology) bool {
	for key, value := range term.GetSegments() {
		if key != TopologyKey || value != d.options.NodeID {
			return false
		}
	}
	return len(term.GetSegments()) > 0
}

// labelFor is a name for people, stored in the superblock.
func labelFor(req *csi.CreateVolumeRequest) string {
	const maxLabel = 63
	label := req.GetName()
	if claim := req.GetParameters()[reservedPrefix+"pvc/name"]; claim != "" {
		label = req.GetParameters()[reservedPrefix+"pvc/namespace"] + "/" + claim
	}
	if len(label) > maxLabel {
		label = strings.ToValidUTF8(label[:maxLabel], "")
	}
	return label
}

func (d *Driver) csiVolume(r *record) *csi.Volume {
	return &csi.Volume{VolumeId: r.ID, CapacityBytes: int64(r.Capacity), VolumeContext: r.volumeContext(), AccessibleTopology: []*csi.Topology{d.topology()}}
}

func (s *controllerServer) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return nil, err
	}
	end, err := s.d.inflight.begin(req.GetVolumeId(), "DeleteVolume")
	if err != nil {
		return nil, err
	}
	defer end()
	return &csi.DeleteVolumeResponse{}, s.d.delete(ctx, req.GetVolumeId())
}

func (s *controllerServer) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, invalidArgument("volume capabilities are missing")
	}
	r, err := s.d.peek(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := confirm(req, r); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(), Parameters: req.GetParameters(),
		MutableParameters: req.GetMutableParameters()}}, nil
}

// confirm returns why the volume does not have what the request asks about.
func confirm(req *csi.ValidateVolumeCapabilitiesRequest, r *record) error {
	have, err := r.params()
	if err != nil {
		return err
	}
	if len(req.GetMutableParameters()) > 0 {
		return errors.New("mutable parameters are not supported")
	}
	if _, err := have.withContext(req.GetVolumeContext()); err != nil {
		return err
	}
	want := have
	if len(req.GetParameters()) > 0 {
		if want, err = ParseParams(OriginClass, req.GetParameters()); err != nil {
			return err
		}
	}
	if err := applyCapabilities(&want, req.GetVolumeCapabilities()); err != nil {
		return err
	}
	if want != have {
		return errors.New("the volume was created with other parameters")
	}
	return nil
}

func (s *controllerServer) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return nil, err
	}
	r, err := s.d.peek(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{Volume: s.d.csiVolume(r), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

func (s *controllerServer) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	health, err := s.d.volumeHealth(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: health}, nil
}
