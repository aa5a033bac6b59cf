package localcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// suitePrograms are built in the module of the storage suite.
var suitePrograms = []program{
	{name: suiteTests, pkg: ".", test: true},
	{name: agnhost, pkg: "k8s.io/kubernetes/test/images/agnhost"},
	{name: "ginkgo", pkg: "github.com/onsi/ginkgo/v2/ginkgo"},
}

const (
	suiteTests = "e2e.test"
	agnhost    = "agnhost"
)

// Suite is Kubernetes' external storage suite, and a cluster that it is run in.
type Suite struct {
	Cluster *Cluster
	Module  string // directory of the module that it is built in
	Bin     string // where its programs are
}

// NewSuite returns the suite of the repository.
func NewSuite(c *Cluster, repository string) (Suite, error) {
	module := filepath.Join(repository, "test", "e2e", "conformance")
	bin, err := binaries("conformance", filepath.Join(module, "go.sum"), filepath.Join(module, "conformance_test.go"))
	return Suite{Cluster: c, Module: module, Bin: bin}, err
}

// Build builds what is missing.
func (s Suite) Build(ctx context.Context, log func(format string, args ...any)) error {
	return build(ctx, s.Module, s.Bin, suitePrograms, log)
}

// LoadImages gives the nodes the images that the suite's pods run.
func (s Suite) LoadImages(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, filepath.Join(s.Bin, suiteTests), "--suite-images").Output()
	if err != nil {
		return fmt.Errorf("names of the suite's images: %w", err)
	}
	for _, reference := range strings.Fields(string(out)) {
		image, err := s.image(reference)
		if err != nil {
			return err
		}
		// Out of the directory from which a node loads images when it starts.
		file := s.Cluster.path("suite-image.tar")
		if err := image.Write(file); err != nil {
			return err
		}
		for _, n := range s.Cluster.Nodes {
			if err := n.LoadImage(ctx, file); err != nil {
				return fmt.Errorf("image %s on node %s: %w", reference, n.Name, err)
			}
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}

// image makes one of the suite's images from programs of ours: they have the same
// commands, from the same source, on busybox.
func (s Suite) image(reference string) (Image, error) {
	i := Image{Reference: reference, Busybox: true, Files: map[string]string{}}
	name, _, _ := strings.Cut(reference[strings.LastIndex(reference, "/")+1:], ":")
	switch name {
	case "agnhost":
		i.Files[agnhost] = filepath.Join(s.Bin, agnhost)
		i.Entrypoint, i.Command = []string{"/" + agnhost}, []string{"pause"}
	case "busybox", "nginx": // of nginx only the shell is used
		i.Command = []string{"sh"}
	case "glibc-dns-testing": // for dd with oflag=nocache
		if err := i.WithLibraries("dd"); err != nil {
			return i, err
		}
		i.Files["bin/dd"] = i.Files["usr/bin/dd"]
		i.Command = []string{"sh"}
	case "pause":
		i.Busybox = false
		i.Files["pause"] = filepath.Join(s.Cluster.Bin, "pause")
		i.Entrypoint = []string{"/pause"}
	default:
		return i, fmt.Errorf("the suite wants image %s, which nobody has described", reference)
	}
	return i, nil
}

// SuiteOptions say which tests are run.
type SuiteOptions struct {
	Focus     string // a regular expression; "" is all
	Processes int    // that run tests at a time
	ReportDir string // gets a JUnit report
}

// suiteLeftOut are tests that are not tried; docs/conformance.md says why.
var suiteLeftOut = []string{`\[Disruptive\]`, `\(immediate binding\)`, "any volume data source"}

// suiteReport is the name of the report.
const suiteReport = "junit.xml"

// Run runs the suite; output goes to this process's.
func (s Suite) Run(ctx context.Context, o SuiteOptions) error {
	if err := os.MkdirAll(o.ReportDir, 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(o.ReportDir, suiteReport)); err != nil { // of another run
		return err
	}
	argv := []string{filepath.Join(s.Bin, "ginkgo"), "--procs", strconv.Itoa(o.Processes), "--no-color", "--timeout", "2h",
		"--output-dir", o.ReportDir, "--junit-report", suiteReport}
	focus := "External.Storage"
	if o.Focus != "" {
		focus += ".*" + o.Focus
	}
	argv = append(argv, "--focus", focus, "--skip", strings.Join(suiteLeftOut, "|"),
		filepath.Join(s.Bin, suiteTests), "--", "--kubeconfig", s.Cluster.Kubeconfig(), "--provider", "skeleton",
		"--storage.testdriver", filepath.Join(s.Module, "nvfs.yaml"), "--allowed-not-ready-nodes", "0", "--minStartupPods", "0")
	return s.Cluster.Run(ctx, argv...)
}
