package main

import (
	"slices"
	"testing"
)

func TestToolArgs(t *testing.T) {
	for _, tc := range []struct {
		argv, want []string
	}{
		{[]string{"/usr/bin/nvfs-csi", "fsck", "-n", "x"}, []string{"fsck", "-n", "x"}},
		{[]string{"/sbin/mkfs.nvfs", "--label", "l", "/dev/dax0.0"}, []string{"mkfs", "--label", "l", "/dev/dax0.0"}},
		// As mount(8) calls it.
		{[]string{"/sbin/mount.nvfs", "/dev/dax0.0", "/mnt", "-s", "-n", "-o", "rw,flush=nt"}, []string{"mount", "/dev/dax0.0", "/mnt", "-o", "rw,flush=nt"}},
		{[]string{"mount.nvfs", "-t", "nvfs", "/dev/dax0.0", "/mnt"}, []string{"mount", "/dev/dax0.0", "/mnt"}},
		// As fsck(8) calls it.
		{[]string{"fsck.nvfs", "-a", "-C0", "/dev/dax0.0"}, []string{"fsck", "/dev/dax0.0"}},
		{[]string{"fsck.nvfs", "-y", "/dev/dax0.0"}, []string{"fsck", "--repair", "/dev/dax0.0"}},
		{[]string{"fsck.nvfs", "-n", "/dev/dax0.0"}, []string{"fsck", "-n", "/dev/dax0.0"}},
	} {
		if got := toolArgs(tc.argv); !slices.Equal(got, tc.want) {
			t.Errorf("toolArgs(%q) = %q, want %q", tc.argv, got, tc.want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want int
	}{
		{[]string{"version"}, 0},
		{[]string{"nosuch"}, 1},
		{[]string{"mount", "only-one"}, 1},
		{[]string{"discover"}, 0},
		{[]string{"serve"}, 1},
		{[]string{"serve", "/dev/dax0.0", "/mnt"}, 1},
		{[]string{"fsck", "--nosuch", "x"}, 16},
		{[]string{"fsck"}, 16},
		{[]string{"fsck", "-n", "--repair", "x"}, 16},
		{[]string{"fsck", "/nonexistent"}, 8},
	} {
		if got := execute(t.Context(), append([]string{"nvfs-csi"}, tc.args...)); got != tc.want {
			t.Errorf("%q: exit code %d, want %d", tc.args, got, tc.want)
		}
	}
}
