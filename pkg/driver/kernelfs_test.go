package driver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func mountedAs(fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
}

func asBlock() *csi.VolumeCapability {
	c := mountedAs("")
	c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	return c
}

// What a class and a capability together ask for, and what they must not.
func TestApplyCapabilities(t *testing.T) {
	for name, test := range map[string]struct {
		class        map[string]string
		capabilities []*csi.VolumeCapability
		fsType       string
		mode         string
		dax          bool
	}{
		"nothing said":    {nil, []*csi.VolumeCapability{mountedAs("")}, FSTypeNVFS, "devdax", false},
		"ext4":            {nil, []*csi.VolumeCapability{mountedAs("ext4")}, FSTypeExt4, "fsdax", true},
		"xfs on sector":   {map[string]string{KeyNamespaceMode: "sector"}, []*csi.VolumeCapability{mountedAs("xfs")}, FSTypeXFS, "sector", false},
		"block":           {nil, []*csi.VolumeCapability{asBlock(), asBlock()}, FSTypeBlock, "fsdax", true},
		"block on sector": {map[string]string{KeyNamespaceMode: "sector"}, []*csi.VolumeCapability{asBlock()}, FSTypeBlock, "sector", false},
		"both":            {nil, []*csi.VolumeCapability{asBlock(), mountedAs("")}, "", "", false},
		"both, reversed":  {nil, []*csi.VolumeCapability{mountedAs("ext4"), asBlock()}, "", "", false},
		"nvfs on fsdax":   {map[string]string{KeyNamespaceMode: "fsdax"}, []*csi.VolumeCapability{mountedAs("")}, "", "", false},
		"flush mode":      {map[string]string{KeyFlushMode: "clwb"}, []*csi.VolumeCapability{mountedAs("ext4")}, "", "", false},
		"none":            {nil, nil, "", "", false},
	} {
		p, err := ParseParams(OriginClass, test.class)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err = applyCapabilities(&p, test.capabilities)
		if test.fsType == "" {
			if codeOf(err) != codes.InvalidArgument {
				t.Errorf("%s: %v, want InvalidArgument", name, err)
			}
			continue
		}
		if err != nil || p.FSType != test.fsType || string(p.namespaceMode()) != test.mode || p.dax() != test.dax {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
		// A record has to give the same parameters again.
		if again, err := ParseParams(OriginState, p.Map(OriginState)); err != nil || again != p {
			t.Errorf("%s: recorded and read: %+v, %v", name, again, err)
		}
	}
	if _, err := ParseParams(OriginClass, map[string]string{KeyFSType: FSTypeBlock}); codeOf(err) != codes.InvalidArgument {
		t.Errorf("a class for block: %v", err)
	}
}

func TestXFSHasALeastSize(t *testing.T) {
	p := Params{FSType: FSTypeXFS}
	if got, err := p.leastSize(sizeRange{required: 1}); err != nil || got.required != xfsMinimum {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := p.leastSize(sizeRange{required: 1, limit: xfsMinimum - 1}); codeOf(err) != codes.OutOfRange {
		t.Errorf("a limit below it: %v", err)
	}
	if got, err := (Params{FSType: FSTypeExt4}).leastSize(sizeRange{required: 1}); err != nil || got.required != 1 {
		t.Errorf("ext4: %+v, %v", got, err)
	}
}

func TestOnlyNVFSGrows(t *testing.T) {
	r := &record{Params: map[string]string{KeyFSType: FSTypeExt4}, Capacity: 100}
	if err := r.checkKernelGrowth(sizeRange{required: 101}); codeOf(err) != codes.OutOfRange {
		t.Errorf("ext4: %v", err)
	}
	if err := r.checkKernelGrowth(sizeRange{required: 100}); err != nil {
		t.Errorf("ext4 to the size it has: %v", err)
	}
	if err := (&record{Params: map[string]string{}, Capacity: 100}).checkKernelGrowth(sizeRange{required: 101}); err != nil {
		t.Errorf("nvfs: %v", err)
	}
}
