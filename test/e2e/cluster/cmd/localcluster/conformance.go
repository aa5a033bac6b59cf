package main

import (
	"context"
	"errors"
	"flag"
	"runtime"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

// conformance runs the storage suite of Kubernetes in a cluster that is up.
func conformance(ctx context.Context, cluster *localcluster.Cluster, repository string, args []string) error {
	var o localcluster.SuiteOptions
	flags := flag.NewFlagSet("conformance", flag.ExitOnError)
	flags.StringVar(&o.Focus, "focus", "", "regular expression of the tests to run")
	flags.IntVar(&o.Processes, "procs", 2*runtime.NumCPU(), "tests at a time")
	flags.StringVar(&o.ReportDir, "report-dir", "bench/conformance", "directory that gets a JUnit report")
	buildOnly := flags.Bool("build", false, "only build the suite, if it is not cached")
	_ = flags.Parse(args) // exits with an error of its own
	suite, err := localcluster.NewSuite(cluster, repository)
	if err != nil {
		return err
	}
	if err := suite.Build(ctx, log); err != nil || *buildOnly {
		return err
	}
	log("loading the suite's images")
	if err := suite.LoadImages(ctx); err != nil {
		return err
	}
	return errors.Join(suite.Run(ctx, o), suite.Report(o.ReportDir, log))
}
