package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

func TestMountOptions(t *testing.T) {
	spec := mountd.Spec{NUMANode: -1}
	err := applyMountOptions(&spec, []string{"flush=clwb,cache=direct", "transport=dev,numa=0,emulated,ro,,nosuid", "defaults,noexec", "_netdev,nofail,auto,noauto,user,users,owner,comment=x,x-systemd.automount,x-systemd.requires=a.mount,X-mount.mkdir=0755"})
	if err != nil {
		t.Fatal(err)
	}
	if spec.Flush != "clwb" || spec.Cache != "direct" || spec.Transport != "dev" || spec.NUMANode != 0 || !spec.Emulated || !spec.ReadOnly {
		t.Errorf("got %+v", spec)
	}
	if !slices.Equal(spec.MountFlags, []string{"nosuid", "noexec"}) {
		t.Errorf("mount flags %q", spec.MountFlags)
	}
	if err := applyMountOptions(&spec, []string{"rw,flush=nt"}); err != nil {
		t.Fatal(err)
	}
	if spec.ReadOnly || spec.Flush != "nt" {
		t.Errorf("a later option does not win: %+v", spec)
	}
}

func TestMountOptionsRefused(t *testing.T) {
	for options, wants := range map[string][]string{
		"nosuch":      {`"nosuch"`, "flush=...", "emulated", "noatime"},
		"dax":         {`"dax"`, "known are"},
		"flush":       {"flush=VALUE"},
		"cache=":      {"cache=VALUE"},
		"emulated=1":  {"takes no value"},
		"numa=first":  {`"first" is not the number of a NUMA node`},
		"atime":       {"access times are not kept", "noatime"},
		"strictatime": {"access times are not kept"},
		"xfs":         {"known are"},
		"numa=4096":   {"no NUMA node 4096"},
		"ro,flus=nt":  {`"flus=nt"`},
		"noexec=true": {"takes no value"},
	} {
		var spec mountd.Spec
		err := applyMountOptions(&spec, []string{options})
		if err == nil {
			t.Errorf("%s: no error", options)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q lacks %q", options, err, want)
			}
		}
	}
}
