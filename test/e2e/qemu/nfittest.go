//go:build qemu

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// QEMU's NVDIMMs have no errors that could be injected. The kernel's own module
// nfit_test has: it makes up a platform with NVDIMMs, and comes with variants of
// the drivers below it. Distributions do not ship it, so it is built from the
// source of the very kernel that the guest runs. The modules are kept apart from
// the others: only the guest that wants them loads them.

// nfitTestDir is where the modules lie in the root image.
const nfitTestDir = "usr/lib/nfit-test"

// nfitTestSource is what of the kernel's source the modules are made from.
var nfitTestSource = []string{"tools/testing/nvdimm", "drivers/nvdimm", "drivers/acpi/nfit", "drivers/dax"}

// makeNFITTest builds the modules for the kernel of that version into root, and
// writes to the file order what has to be loaded, one a line: paths of these
// modules and names of others.
func makeNFITTest(ctx context.Context, work, root, version, order string) error {
	tree := filepath.Join(work, "nfit-test")
	if err := unpackKernelSource(ctx, tree, version); err != nil {
		return err
	}
	common, headers, err := headerDirs(filepath.Join(tree, "usr", "src"), version)
	if err != nil {
		return err
	}
	// The modules look for headers of the drivers where a whole tree has them.
	if err := os.Symlink(filepath.Join(tree, "source", "drivers"), filepath.Join(common, "drivers")); err != nil {
		return err
	}
	source := filepath.Join(tree, "source", "tools", "testing", "nvdimm")
	if err := run(ctx, "", "make", "-s", "-j2", "-C", common, "O="+headers, "M="+source, "modules"); err != nil {
		return fmt.Errorf("nfit_test (gcc, make and libc6-dev are needed): %w", err)
	}
	return installNFITTest(ctx, source, root, order)
}

// unpackKernelSource fetches what is needed to build modules, and unpacks it
// below dir.
func unpackKernelSource(ctx context.Context, dir, version string) error {
	if err := os.MkdirAll(filepath.Join(dir, "source"), 0o755); err != nil {
		return err
	}
	headers := "linux-headers-" + version
	out, err := output(ctx, "", "apt-cache", "depends", "--important", headers)
	if err != nil {
		return err
	}
	packages := []string{headers, "linux-source-" + majorMinor(version)}
	for _, line := range strings.Split(out, "\n") {
		name, found := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		if found && (strings.HasPrefix(name, "linux-headers-") || strings.HasPrefix(name, "linux-kbuild-")) {
			packages = append(packages, name)
		}
	}
	args := append([]string{"-qq", "-o", "APT::Sandbox::User=root", "download"}, packages...)
	if err := run(ctx, dir, "apt-get", args...); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := run(ctx, "", "dpkg-deb", "-x", archive, dir); err != nil {
			return err
		}
	}
	tar, err := filepath.Glob(filepath.Join(dir, "usr", "src", "linux-source-*.tar.xz"))
	if err != nil {
		return err
	}
	if len(tar) != 1 {
		return fmt.Errorf("%d archives of the kernel's source, want one: %v", len(tar), tar)
	}
	args = []string{"-C", filepath.Join(dir, "source"), "--strip-components=1", "-xJf", tar[0], "--wildcards"}
	for _, part := range nfitTestSource {
		args = append(args, "linux-source-*/"+part+"/*")
	}
	return run(ctx, "", "tar", args...)
}

// majorMinor returns 6.1 for 6.1.0-57-cloud-amd64.
func majorMinor(version string) string {
	fields := strings.SplitN(version, ".", 3)
	return strings.Join(fields[:min(2, len(fields))], ".")
}

// headerDirs returns the directory of the headers that all flavours of the kernel
// share, and that of this one.
func headerDirs(dir, version string) (common, headers string, err error) {
	found, err := filepath.Glob(filepath.Join(dir, "linux-headers-*-common"))
	if err != nil {
		return "", "", err
	}
	if len(found) != 1 {
		return "", "", fmt.Errorf("%d directories of common headers, want one: %v", len(found), found)
	}
	return found[0], filepath.Join(dir, "linux-headers-"+version), nil
}

func installNFITTest(ctx context.Context, source, root, order string) error {
	modules := map[string]string{} // path by name
	for _, pattern := range []string{"*.ko", "*/*.ko"} {
		files, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			modules[moduleName(file)] = file
		}
	}
	if modules["nfit_test"] == "" {
		return fmt.Errorf("nfit_test was not built: %v", modules)
	}
	needs := map[string][]string{}
	for name, file := range modules {
		out, err := output(ctx, "", "modinfo", "-F", "depends", file)
		if err != nil {
			return err
		}
		needs[name] = strings.FieldsFunc(strings.TrimSpace(out), func(r rune) bool { return r == ',' })
	}
	dir := filepath.Join(root, nfitTestDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var lines strings.Builder
	for _, name := range loadOrder(needs, nfitTestModules) {
		if modules[name] == "" {
			fmt.Fprintln(&lines, name)
			continue
		}
		target := filepath.Join(dir, filepath.Base(modules[name]))
		if err := run(ctx, "", "strip", "--strip-debug", "-o", target, modules[name]); err != nil {
			return err
		}
		fmt.Fprintln(&lines, "/"+filepath.Join(nfitTestDir, filepath.Base(target)))
	}
	return os.WriteFile(order, []byte(lines.String()), 0o644)
}

// nfitTestModules are what is wanted of the modules; nfit_test makes the NVDIMMs
// and comes last.
var nfitTestModules = []string{"nd_pmem", "nd_btt", "device_dax", "dax_pmem", "nfit_test"}

func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}

// loadOrder lists the wanted modules, each after all that it needs.
func loadOrder(needs map[string][]string, wanted []string) []string {
	var order []string
	var visit func(name string)
	visit = func(name string) {
		name = strings.ReplaceAll(name, "-", "_")
		if slices.Contains(order, name) {
			return
		}
		for _, n := range needs[name] {
			visit(n)
		}
		order = append(order, name)
	}
	for _, name := range wanted {
		visit(name)
	}
	return order
}

// nfitTestOrder reads what a guest has to load instead of the drivers of real
// NVDIMMs.
func (img images) nfitTestOrder() ([]string, error) {
	data, err := os.ReadFile(img.nfitTest)
	if err != nil {
		return nil, err
	}
	order := strings.Fields(string(data))
	if len(order) == 0 {
		return nil, errors.New("no modules are listed in " + img.nfitTest)
	}
	return order, nil
}
