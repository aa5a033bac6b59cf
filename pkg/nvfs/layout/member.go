package layout

import (
	"errors"
	"fmt"
)

// A further device of a volume begins with a label, and its last block begins
// with a copy of it. The label says of which volume the device is a part, so
// that it is neither taken for blank nor mounted alone; what counts is the
// device table of the superblock.
const (
	MemberSize = 512

	mbMagic      = 8
	mbVersion    = 16
	mbIndex      = 20
	mbVolume     = 32
	mbUUID       = 48
	mbBase       = 64
	mbBlocks     = 72
	mbFirstGroup = 80
	mbGroups     = 84
	mbVolumeID   = 128
)

// Member is the decoded label of a further device.
type Member struct {
	Volume   [16]byte // UUID of the volume
	VolumeID string
	Index    uint32 // of the row in the device table
	Device          // that row
}

// Member is the label of the device in row i of the table.
func (s *Superblock) Member(i int) Member {
	return Member{Volume: s.UUID, VolumeID: s.VolumeID, Index: uint32(i), Device: s.Devices[i]}
}

// Encode writes the label, checksum included, into p[:MemberSize].
func (m *Member) Encode(p []byte) {
	p = p[:MemberSize]
	clear(p)
	put64(p, mbMagic, MemberMagic)
	put32(p, mbVersion, Version)
	put32(p, mbIndex, m.Index)
	copy(p[mbVolume:], m.Volume[:])
	copy(p[mbUUID:], m.UUID[:])
	put64(p, mbBase, m.Base)
	put64(p, mbBlocks, m.Blocks)
	put32(p, mbFirstGroup, m.FirstGroup)
	put32(p, mbGroups, m.Groups)
	copy(p[mbVolumeID:mbVolumeID+sbVolumeLen], m.VolumeID)
	Seal(Seed(m.Volume), m.Base, p)
}

// Errors about further devices.
var (
	// ErrMember says that what was taken for a volume is a further device of
	// one.
	ErrMember = errors.New("further device of an NVFS volume")
	// ErrNotMember says that there is no label.
	ErrNotMember = errors.New("no label of a further device")
	// ErrMemberDamaged says that there is a label that does not verify.
	ErrMemberDamaged = errors.New("label of a further device is damaged")
)

// DecodeMember checks and decodes the label in p. It trusts nothing.
func DecodeMember(p []byte) (*Member, error) {
	if len(p) < MemberSize || le64(p, mbMagic) != MemberMagic {
		return nil, ErrNotMember
	}
	p = p[:MemberSize]
	m := &Member{Index: le32(p, mbIndex), VolumeID: cstring(p[mbVolumeID : mbVolumeID+sbVolumeLen])}
	m.Base, m.Blocks, m.FirstGroup, m.Groups = le64(p, mbBase), le64(p, mbBlocks), le32(p, mbFirstGroup), le32(p, mbGroups)
	copy(m.Volume[:], p[mbVolume:])
	copy(m.UUID[:], p[mbUUID:])
	switch {
	case !Verify(Seed(m.Volume), m.Base, p):
		return nil, fmt.Errorf("%w: its checksum is wrong", ErrMemberDamaged)
	case le32(p, mbVersion) != Version:
		return nil, fmt.Errorf("%w: %w %d", ErrMemberDamaged, ErrVersion, le32(p, mbVersion))
	case m.Index == 0, m.Index >= MaxDevices, m.Base == 0, m.Base != uint64(m.FirstGroup)*GroupBlocks,
		m.Blocks < MinBlocks, m.Blocks > maxDeviceBlocks, m.Groups == 0:
		return nil, fmt.Errorf("%w: it contradicts itself", ErrMemberDamaged)
	}
	return m, nil
}

// String names the device for people, who count from 1.
func (m *Member) String() string {
	return fmt.Sprintf("device %d of NVFS volume %s", m.Index+1, FormatUUID(m.Volume))
}

// FormatUUID writes a UUID as people do.
func FormatUUID(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// memberError says what is on a device that begins with the magic number of a
// label, to who has taken it for a volume.
func memberError(p []byte) error {
	m, err := DecodeMember(p)
	if err != nil {
		return fmt.Errorf("%w: %w: give the first device of its volume, and this one beside it", ErrMember, err)
	}
	return fmt.Errorf("%w: this is %s: give the first device of the volume, and this one beside it", ErrMember, m)
}
