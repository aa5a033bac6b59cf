package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CompileJob compiles packages of the Go standard library with a compiler
// whose executable lies where it is told. Sources, imported packages and
// results lie elsewhere.
type CompileJob struct {
	compiler string // the original
	dir      string // results and import configurations
	commands [][]string
}

// compiledPackages are Go only, so that the compiler alone makes them.
var compiledPackages = []string{"encoding/json", "go/parser", "go/scanner", "html", "text/template", "text/template/parse"}

// goPackage is the part of `go list -json` that is used.
type goPackage struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	ImportMap  map[string]string
	Export     string
}

// NewCompileJob prepares the job in dir, an existing directory; it builds the
// imported packages if the cache of the Go toolchain does not have them.
func NewCompileJob(ctx context.Context, dir string) (*CompileJob, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Imports,ImportMap,Export"}, compiledPackages...)...)
	// Neither a module nor flags of whoever starts the benchmark matter.
	cmd.Dir, cmd.Env = os.TempDir(), append(os.Environ(), "GOFLAGS=", "GO111MODULE=off", "GOWORK=off", "CGO_ENABLED=0")
	var messages bytes.Buffer
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list of the packages to compile: %w: %s", err, strings.TrimSpace(messages.String()))
	}
	packages, err := parsePackages(out)
	if err != nil {
		return nil, err
	}
	tool, err := exec.CommandContext(ctx, "go", "tool", "-n", "compile").Output()
	if err != nil {
		return nil, fmt.Errorf("find the Go compiler (go tool -n compile): %w", err)
	}
	j := &CompileJob{compiler: strings.TrimSpace(string(tool)), dir: dir}
	for _, name := range compiledPackages {
		args, err := compileArgs(dir, name, packages)
		if err != nil {
			return nil, err
		}
		j.commands = append(j.commands, args)
	}
	return j, nil
}

func parsePackages(list []byte) (map[string]goPackage, error) {
	packages := map[string]goPackage{}
	for dec := json.NewDecoder(bytes.NewReader(list)); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages, nil
		}
		if err != nil {
			return nil, fmt.Errorf("parse the output of go list: %w", err)
		}
		packages[p.ImportPath] = p
	}
}

// compileArgs writes the import configuration of a package to dir and returns
// the arguments of the compiler.
func compileArgs(dir, name string, packages map[string]goPackage) ([]string, error) {
	p, found := packages[name]
	if !found {
		return nil, fmt.Errorf("go list does not know package %s", name)
	}
	base := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
	var config strings.Builder
	for from, to := range p.ImportMap {
		fmt.Fprintf(&config, "importmap %s=%s\n", from, to)
	}
	for path, dep := range packages {
		if dep.Export != "" {
			fmt.Fprintf(&config, "packagefile %s=%s\n", path, dep.Export)
		}
	}
	if err := os.WriteFile(base+".importcfg", []byte(config.String()), 0o600); err != nil {
		return nil, err
	}
	args := []string{"-o", base + ".a", "-p", name, "-std", "-complete", "-pack", "-importcfg", base + ".importcfg"}
	for _, f := range p.GoFiles {
		args = append(args, filepath.Join(p.Dir, f))
	}
	return args, nil
}

// run starts the compiler once for each package.
func (j *CompileJob) run(ctx context.Context, compiler string) error {
	for _, args := range j.commands {
		if err := run(ctx, compiler, args...); err != nil {
			return err
		}
	}
	return nil
}

func compileFrom(j *CompileJob) Workload {
	return Workload{Group: "compile",
		Rows: []Row{
			{"compile-cold", fmt.Sprintf("compile %d packages, compiler on the volume, cold", len(j.commands)), "s", lower},
			{"compile-cached", fmt.Sprintf("compile %d packages, compiler on the volume, again", len(j.commands)), "s", lower},
		},
		run: func(ctx context.Context, r *Run) ([]float64, error) {
			compiler := filepath.Join(r.Dir, "compile")
			if err := copyFile(j.compiler, compiler, 0o755); err != nil {
				return nil, err
			}
			isCold, err := r.remount(ctx)
			if err != nil {
				return nil, err
			}
			compile := func() error { return j.run(ctx, compiler) }
			cold, err := r.seconds(compile)
			if err != nil {
				return nil, err
			}
			if !isCold {
				cold = notApplicable
			}
			cached, err := r.seconds(compile)
			return []float64{cold, cached}, err
		}}
}
