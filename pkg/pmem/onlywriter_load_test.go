package pmem_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// sourcePackage is a package of the module, parsed and type-checked. Its tests
// are not part of it.
type sourcePackage struct {
	types *types.Package
	files []*ast.File
	info  *types.Info
}

// sourceModule is every package of the module.
type sourceModule struct {
	dir      string
	fset     *token.FileSet
	packages []*sourcePackage
	importer types.Importer
}

// listedPackage is what `go list` says of a package.
type listedPackage struct {
	ImportPath string
	Dir        string
	Export     string // file with its exported types
	GoFiles    []string
	Module     *struct{ Main bool }
}

var loadOnce = sync.OnceValues(readModule)

func loadModule(t *testing.T) *sourceModule {
	t.Helper()
	m, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// readModule type-checks the packages of the module from source, so that an
// object is the same wherever it is used, and takes all others from the compiler.
func readModule() (*sourceModule, error) {
	dir, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	listed, err := listPackages(dir)
	if err != nil {
		return nil, err
	}
	m := &sourceModule{dir: dir, fset: token.NewFileSet()}
	exports, checked := map[string]string{}, map[string]*types.Package{}
	for _, p := range listed {
		exports[p.ImportPath] = p.Export
	}
	compiled := importer.ForCompiler(m.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(exports[path])
	})
	m.importer = importerFunc(func(path string) (*types.Package, error) {
		if p := checked[path]; p != nil {
			return p, nil
		}
		return compiled.Import(path)
	})
	for _, p := range listed { // dependencies come first
		if p.Module == nil || !p.Module.Main {
			continue
		}
		files, err := parseFiles(m.fset, p)
		if err != nil {
			return nil, err
		}
		pkg, err := checkPackage(m.fset, p.ImportPath, files, m.importer)
		if err != nil {
			return nil, err
		}
		checked[p.ImportPath] = pkg.types
		m.packages = append(m.packages, pkg)
	}
	return m, nil
}

func listPackages(dir string) ([]listedPackage, error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Dir,Export,GoFiles,Module", "./...")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	var listed []listedPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return listed, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		listed = append(listed, p)
	}
}

func parseFiles(fset *token.FileSet, p listedPackage) ([]*ast.File, error) {
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func checkPackage(fset *token.FileSet, path string, files []*ast.File, imports types.Importer) (*sourcePackage, error) {
	p := &sourcePackage{files: files, info: &types.Info{
		Types:      map[ast.Expr]types.TypeAndValue{},
		Defs:       map[*ast.Ident]types.Object{},
		Uses:       map[*ast.Ident]types.Object{},
		Implicits:  map[ast.Node]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
		Instances:  map[*ast.Ident]types.Instance{},
	}}
	config := types.Config{Importer: imports, Sizes: types.SizesFor("gc", "amd64")}
	var err error
	p.types, err = config.Check(path, fset, files, p.info)
	return p, err
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

// space is the interface pmem.Space.
func (m *sourceModule) space(t *testing.T) *types.Interface {
	t.Helper()
	for _, p := range m.packages {
		if strings.HasSuffix(p.types.Path(), "/pkg/pmem") {
			if space := p.types.Scope().Lookup("Space"); space != nil {
				return space.Type().Underlying().(*types.Interface)
			}
		}
	}
	t.Fatal("the module has no pmem.Space")
	return nil
}
