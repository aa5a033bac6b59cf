// Package conformance is the external storage suite of Kubernetes: the tests that
// k8s.io/kubernetes/test/e2e/storage/external makes for a driver from a file that
// describes it. It is what e2e.test does with --storage.testdriver, without the
// hundreds of tests that are about something else.
package conformance

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/storage/external" // --storage.testdriver
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	"k8s.io/kubernetes/test/utils/image"
)

// suiteImages prints the images that the suite's pods run, instead of running
// it: there is no registry to pull them from.
var suiteImages = flag.Bool("suite-images", false, "print the names of the images that the tests use, and exit")

func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if *suiteImages {
		for _, id := range []image.ImageID{image.Agnhost, image.BusyBox, image.GlibcDnsTesting, image.Nginx, image.Pause} {
			fmt.Println(image.GetE2EImage(id))
		}
		os.Exit(0)
	}
	testfiles.AddFileSource(e2etestingmanifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

func TestExternalStorage(t *testing.T) { e2e.RunE2ETests(t) }
