package driver

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// The keys of the parameters, exactly as users write them.
const (
	KeyFSType        = "csi.storage.k8s.io/fstype"
	KeyFlushMode     = "flushMode"
	KeyCacheMode     = "cacheMode"
	KeyTransport     = "transport"
	KeyNUMANode      = "numaNode"
	KeyNUMAPolicy    = "numaPolicy"
	KeyEraseOnDelete = "eraseOnDelete"
	KeyProvision     = "provision"
	KeyNamespaceMode = "namespaceMode"
)

// The values of some parameters.
const (
	FSTypeNVFS = "nvfs"
	FSTypeExt4 = "ext4"
	FSTypeXFS  = "xfs"
	// FSTypeBlock is that of raw block volumes, which volumeMode asks for and
	// no class; records know it.
	FSTypeBlock = "block"

	PolicyAny    = "any"
	PolicySpread = "spread"
	PolicyPack   = "pack"

	ProvisionRegion    = "region"
	ProvisionNamespace = "namespace"

	anyNUMANode = -1
)

// Sidecars and the kubelet add keys with these prefixes; they are not ours to
// judge.
const (
	reservedPrefix = "csi.storage.k8s.io/"
	kubernetesKeys = "storage.kubernetes.io/"
)

// Origin says where parameters come from; each has its own list of allowed
// keys.
type Origin uint8

// The origins of parameters.
const (
	OriginClass   Origin = 1 << iota // StorageClass: CreateVolume and GetCapacity
	OriginContext                    // volume context, stored in the PersistentVolume: NodeStageVolume and later
	OriginState                      // a record on the node or the superblock
)

func (o Origin) String() string {
	switch o {
	case OriginClass:
		return "StorageClass"
	case OriginContext:
		return "volume attributes"
	case OriginState:
		return "node state"
	}
	return "origin " + strconv.Itoa(int(o))
}

// Params are the parameters of a volume, all with their defaults filled in.
// Two are equal (==) when they mean the same volume.
type Params struct {
	FSType        string
	FlushMode     string
	CacheMode     string
	Transport     string
	NUMANode      int // -1: any
	NUMAPolicy    string
	EraseOnDelete bool
	Provision     string
	NamespaceMode string // "" is what the filesystem wants
}

// parameter describes one key.
type parameter struct {
	key     string
	origins Origin
	values  []string // what is allowed; empty: described by check
	format  string   // shown instead of values when these are empty
	initial string   // default, as a user would write it
	doc     string
	check   func(value string) bool
	set     func(p *Params, value string)
	get     func(p *Params) string
}

func stringParameter(key string, origins Origin, field func(*Params) *string, initial, doc string, values ...string) parameter {
	return parameter{key: key, origins: origins, values: values, initial: initial, doc: doc,
		check: func(v string) bool { return slices.Contains(values, v) },
		set:   func(p *Params, v string) { *field(p) = v },
		get:   func(p *Params) string { return *field(p) },
	}
}

const classAndState = OriginClass | OriginState

// parameters is the one list of what users can set. The parser, the error
// messages and docs/parameters.md come from it.
var parameters = []parameter{
	fsTypeParameter(),
	stringParameter(KeyFlushMode, classAndState|OriginContext, func(p *Params) *string { return &p.FlushMode }, string(pmem.Auto),
		"How stores become durable. Nodes that cannot honour the mode report no capacity for the class, so pods are scheduled elsewhere. `auto` takes what the node's administrator has chosen for it, else what the node measured to be fastest on that kind of memory and NUMA node; a volume that is mounted before the measurement, which a node makes once, uses a default.",
		flushModes()...),
	stringParameter(KeyCacheMode, classAndState|OriginContext, func(p *Params) *string { return &p.CacheMode }, "through",
		"Use of the page cache. `through`: reads are cached, each write is durable when it returns. `direct`: no page cache. `writeback`: fast, durable at fsync only.",
		"through", "direct", "writeback"),
	stringParameter(KeyTransport, classAndState|OriginContext, func(p *Params) *string { return &p.Transport }, "dev",
		"How requests travel between kernel and server. `dev`: through the FUSE device; a server that dies is replaced and no program notices. `uring`: through io_uring (Linux 6.14), each on the CPU that it was made on; fastest, but if the server dies the volume has to be staged again. `auto`: `uring` where it works, else `dev`.",
		"auto", "uring", "dev"),
	numaNodeParameter(),
	stringParameter(KeyNUMAPolicy, classAndState, func(p *Params) *string { return &p.NUMAPolicy }, PolicyAny,
		"Which region is tried first when several could hold the volume. `any`: in order of name. `spread`: most free memory first. `pack`: least free memory first.",
		PolicyAny, PolicySpread, PolicyPack),
	eraseParameter(),
	stringParameter(KeyProvision, classAndState, func(p *Params) *string { return &p.Provision }, ProvisionRegion,
		"`region`: carve a new namespace out of free memory. `namespace`: use the smallest existing namespace that is large enough, idle and blank, and in the mode that the filesystem wants; it is erased and kept when the volume is deleted.",
		ProvisionRegion, ProvisionNamespace),
	stringParameter(KeyNamespaceMode, classAndState, func(p *Params) *string { return &p.NamespaceMode }, "",
		"Mode of the namespace below `ext4`, `xfs` and block volumes; must not be set for `nvfs`, which uses devdax.",
		string(ndctl.FSDax), string(ndctl.Sector)),
}

func fsTypeParameter() parameter {
	p := stringParameter(KeyFSType, classAndState, func(p *Params) *string { return &p.FSType }, FSTypeNVFS,
		"Filesystem on the volume. `ext4` and `xfs` need real regions: they lie on an fsdax namespace and are mounted with `-o dax`, so that programs may map files with MAP_SYNC; they cannot grow. Volumes with `volumeMode: Block` lie on an fsdax namespace as well, whatever this says.",
		FSTypeNVFS, FSTypeExt4, FSTypeXFS)
	listed := p.check
	p.check = func(v string) bool { return listed(v) || v == FSTypeBlock }
	return p
}

func flushModes() []string {
	var names []string
	for _, m := range pmem.AllModes() {
		names = append(names, string(m))
	}
	return names
}

func numaNodeParameter() parameter {
	return parameter{key: KeyNUMANode, origins: classAndState, format: "a node number: `0`, `1`, ...",
		doc:   "NUMA node that the memory must be on. Unset: any.",
		check: func(v string) bool { _, ok := ParseNUMANode(v); return ok },
		set:   func(p *Params, v string) { p.NUMANode, _ = ParseNUMANode(v) },
		get: func(p *Params) string {
			if p.NUMANode == anyNUMANode {
				return ""
			}
			return strconv.Itoa(p.NUMANode)
		}}
}

func eraseParameter() parameter {
	return parameter{key: KeyEraseOnDelete, origins: classAndState, values: []string{"true", "false"}, initial: "true",
		doc:   "Overwrite the whole volume before its memory is given back. Without it the data stays in the memory until something overwrites it.",
		check: func(v string) bool { return v == "true" || v == "false" },
		set:   func(p *Params, v string) { p.EraseOnDelete = v == "true" },
		get:   func(p *Params) string { return strconv.FormatBool(p.EraseOnDelete) }}
}

// DefaultParams returns what a class without parameters means.
func DefaultParams() Params {
	p := Params{NUMANode: anyNUMANode}
	for _, def := range parameters {
		if def.initial != "" {
			def.set(&p, def.initial)
		}
	}
	return p
}

// ParseParams parses parameters of the given origin. Unknown keys and values
// are refused with what would have been allowed; reserved keys that sidecars
// add are ignored.
func ParseParams(origin Origin, values map[string]string) (Params, error) {
	p := DefaultParams()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		def := lookupParameter(origin, key)
		if def == nil {
			if ignoredKey(origin, key) {
				continue
			}
			return Params{}, invalidArgument("unknown parameter %q in the %s; allowed are %s", key, origin, strings.Join(allowedKeys(origin), ", "))
		}
		if !def.check(values[key]) {
			return Params{}, invalidArgument("parameter %s=%q in the %s; allowed is %s", key, values[key], origin, def.allowed())
		}
		def.set(&p, values[key])
	}
	if p.FSType == FSTypeBlock && origin != OriginState {
		return Params{}, invalidArgument("parameter %s=%q in the %s; raw block volumes are asked for with volumeMode: Block", KeyFSType, p.FSType, origin)
	}
	return p, nil
}

// Map returns the parameters as an origin would write them; those that have
// no value are left out.
func (p Params) Map(origin Origin) map[string]string {
	values := map[string]string{}
	for _, def := range parameters {
		if v := def.get(&p); def.origins&origin != 0 && v != "" {
			values[def.key] = v
		}
	}
	return values
}

// withContext returns p with what the volume context says about mounting.
func (p Params) withContext(context map[string]string) (Params, error) {
	if _, err := ParseParams(OriginContext, context); err != nil {
		return Params{}, err
	}
	for _, def := range parameters {
		if v, ok := context[def.key]; ok && def.origins&OriginContext != 0 {
			def.set(&p, v)
		}
	}
	return p, nil
}

// namespaceMode is the mode of the namespace that the filesystem wants.
func (p Params) namespaceMode() ndctl.Mode {
	switch {
	case p.NamespaceMode != "":
		return ndctl.Mode(p.NamespaceMode)
	case p.FSType == FSTypeNVFS:
		return ndctl.DevDax
	}
	return ndctl.FSDax
}

func (d *parameter) allowed() string {
	if d.format != "" {
		return strings.ReplaceAll(d.format, "`", "")
	}
	return strings.Join(d.values, ", ")
}

func lookupParameter(origin Origin, key string) *parameter {
	for i := range parameters {
		if parameters[i].key == key && parameters[i].origins&origin != 0 {
			return &parameters[i]
		}
	}
	return nil
}

// ignoredKey reports whether the orchestrator may have added key, or the driver for
// others to read. A key that is one of ours but for upper and lower case is a
// mistake of the user.
func ignoredKey(origin Origin, key string) bool {
	for _, def := range parameters {
		if strings.EqualFold(def.key, key) {
			return false
		}
	}
	switch origin {
	case OriginClass:
		return strings.HasPrefix(key, reservedPrefix)
	case OriginContext:
		return strings.HasPrefix(key, reservedPrefix) || strings.HasPrefix(key, kubernetesKeys) || key == NUMANodeKey
	}
	return false
}

func allowedKeys(origin Origin) []string {
	var keys []string
	for _, def := range parameters {
		if def.origins&origin != 0 {
			keys = append(keys, def.key)
		}
	}
	return keys
}
