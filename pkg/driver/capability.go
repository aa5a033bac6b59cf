package driver

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// accessModes are those of a volume that exists on one node only.
var accessModes = []csi.VolumeCapability_AccessMode_Mode{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
}

// access is what a volume capability asks for.
type access struct {
	fsType   string // "" when the capability leaves it open
	flags    []string
	readOnly bool
	single   bool // one target at a time
	block    bool // the device itself, without a filesystem
}

// parseCapability checks one capability and returns what it asks for.
func parseCapability(c *csi.VolumeCapability) (access, error) {
	if c == nil {
		return access{}, invalidArgument("volume capability is missing")
	}
	if c.GetMount() == nil && c.GetBlock() == nil {
		return access{}, invalidArgument("volume capability has no access type; want a mounted filesystem")
	}
	mode := c.GetAccessMode().GetMode()
	if !slices.Contains(accessModes, mode) {
		return access{}, invalidArgument("access mode %s is not supported: the volume exists on one node only; use ReadWriteOnce or ReadWriteOncePod", mode)
	}
	single := mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	if c.GetBlock() != nil {
		return access{block: true, single: single, readOnly: mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY}, nil
	}
	if group := c.GetMount().GetVolumeMountGroup(); group != "" {
		return access{}, invalidArgument("volume_mount_group %q is not supported; the kubelet applies fsGroup itself", group)
	}
	fsType := c.GetMount().GetFsType()
	if fsType != "" {
		// The parser knows the names.
		if _, err := ParseParams(OriginClass, map[string]string{KeyFSType: fsType}); err != nil {
			return access{}, err
		}
	}
	flags, readOnly, err := parseMountFlags(c.GetMount().GetMountFlags())
	if err != nil {
		return access{}, err
	}
	return access{fsType: fsType, flags: flags,
		readOnly: readOnly || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		single:   single}, nil
}
