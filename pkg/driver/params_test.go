package driver

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

func TestParseParams(t *testing.T) {
	full := map[string]string{KeyFSType: "nvfs", KeyFlushMode: "clwb", KeyCacheMode: "writeback", KeyTransport: "dev", KeyNUMANode: "1",
		KeyNUMAPolicy: "spread", KeyEraseOnDelete: "false", KeyProvision: "namespace"}
	want := Params{FSType: "nvfs", FlushMode: "clwb", CacheMode: "writeback", Transport: "dev", NUMANode: 1, NUMAPolicy: "spread", Provision: "namespace"}
	got, err := ParseParams(OriginClass, full)
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	got, err = ParseParams(OriginClass, nil)
	want = Params{FSType: "nvfs", FlushMode: "auto", CacheMode: "through", Transport: "dev", NUMANode: -1, NUMAPolicy: "any", EraseOnDelete: true, Provision: "region"}
	if err != nil || got != want {
		t.Errorf("defaults: got %+v, %v; want %+v", got, err, want)
	}
}

func TestParamsSurviveTheRecord(t *testing.T) {
	for _, values := range []map[string]string{
		nil,
		{KeyNUMANode: "0", KeyEraseOnDelete: "false", KeyFlushMode: "nt"},
		{KeyFSType: "xfs", KeyNamespaceMode: "sector"},
	} {
		p, err := ParseParams(OriginClass, values)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseParams(OriginState, p.Map(OriginState))
		if err != nil || again != p {
			t.Errorf("%v: %+v came back as %+v, %v", values, p, again, err)
		}
	}
}

func TestParseParamsRefuses(t *testing.T) {
	for _, test := range []struct {
		origin Origin
		key    string
		value  string
		says   string
	}{
		{OriginClass, "flushmode", "clwb", "flushMode"},
		{OriginClass, "colour", "red", "flushMode, cacheMode, transport, numaNode, numaPolicy, eraseOnDelete, provision, namespaceMode"},
		{OriginClass, "csi.storage.k8s.io/fsType", "nvfs", "csi.storage.k8s.io/fstype"},
		{OriginClass, KeyFSType, "btrfs", "nvfs, ext4, xfs"},
		{OriginClass, KeyFlushMode, "CLWB", "clwb, clflushopt"},
		{OriginClass, KeyFlushMode, "", "auto"},
		{OriginClass, KeyCacheMode, "none", "through, direct, writeback"},
		{OriginClass, KeyTransport, "tcp", "auto, uring, dev"},
		{OriginClass, KeyNUMANode, "-1", "a node number"},
		{OriginClass, KeyNUMANode, "01", "a node number"},
		{OriginClass, KeyNUMAPolicy, "best", "any, spread, pack"},
		{OriginClass, KeyEraseOnDelete, "True", "true, false"},
		{OriginClass, KeyEraseOnDelete, "yes", "true, false"},
		{OriginClass, KeyProvision, "x", "region, namespace"},
		{OriginClass, "storage.kubernetes.io/csiProvisionerIdentity", "x", "unknown"},
		{OriginContext, KeyEraseOnDelete, "false", "flushMode, cacheMode, transport"},
		{OriginContext, KeyNUMANode, "0", "unknown"},
		{OriginState, "csi.storage.k8s.io/pvc/name", "x", "unknown"},
	} {
		_, err := ParseParams(test.origin, map[string]string{test.key: test.value})
		if codeOf(err) != codes.InvalidArgument || !strings.Contains(err.Error(), test.key) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s %s=%q: %v; want InvalidArgument with the key and %q", test.origin, test.key, test.value, err, test.says)
		}
	}
}

func TestReservedKeysAreIgnored(t *testing.T) {
	for origin, keys := range map[Origin][]string{
		OriginClass:   {"csi.storage.k8s.io/pvc/name", "csi.storage.k8s.io/pvc/namespace", "csi.storage.k8s.io/pv/name", "csi.storage.k8s.io/provisioner-secret-name"},
		OriginContext: {"storage.kubernetes.io/csiProvisionerIdentity", "csi.storage.k8s.io/pod.name", "csi.storage.k8s.io/ephemeral", NUMANodeKey},
	} {
		for _, key := range keys {
			if p, err := ParseParams(origin, map[string]string{key: "x"}); err != nil || p != DefaultParams() {
				t.Errorf("%s %s: %+v, %v", origin, key, p, err)
			}
		}
	}
}

func TestVolumeContextOverridesMountParametersOnly(t *testing.T) {
	class, err := ParseParams(OriginClass, map[string]string{KeyFlushMode: "nt", KeyNUMANode: "1"})
	if err != nil {
		t.Fatal(err)
	}
	context := class.Map(OriginContext)
	if !maps.Equal(context, map[string]string{KeyFlushMode: "nt", KeyCacheMode: "through", KeyTransport: "dev"}) {
		t.Errorf("context is %v", context)
	}
	got, err := class.withContext(map[string]string{KeyCacheMode: "direct"})
	want := class
	want.CacheMode = "direct"
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestNamespaceModes(t *testing.T) {
	for values, want := range map[[2]string]ndctl.Mode{{"nvfs", ""}: ndctl.DevDax, {"ext4", ""}: ndctl.FSDax, {"xfs", "sector"}: ndctl.Sector} {
		if got := (Params{FSType: values[0], NamespaceMode: values[1]}).namespaceMode(); got != want {
			t.Errorf("%v: %s, want %s", values, got, want)
		}
	}
}

func TestParameterDocsHaveAllKeysAndValues(t *testing.T) {
	docs := ParameterDocs()
	for _, def := range parameters {
		for _, word := range append([]string{def.key, def.doc}, def.values...) {
			if !strings.Contains(docs, word) {
				t.Errorf("%s: no %q in the table", def.key, word)
			}
		}
	}
}
