// Package chart renders the chart of the driver without a cluster and holds its
// tests: lint, schema, golden files, the README and the plain manifests of
// deploy/, which are all generated from it.
package chart

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
)

// Options of a rendering.
type Options struct {
	Values      map[string]any
	APIVersions []string // that the cluster has besides those of Kubernetes
	Hooks       bool     // include hooks
}

// Render renders the chart as release nvfs-csi in namespace nvfs-csi. The
// documents are in the order of installation.
func Render(dir string, o Options) ([]string, error) {
	c, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	files, err := renderFiles(c, o)
	if err != nil {
		return nil, err
	}
	for name := range files {
		if path.Base(name) == "NOTES.txt" {
			delete(files, name)
		}
	}
	hooks, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	var documents []string
	for _, m := range manifests {
		documents = append(documents, strings.TrimSpace(m.Content)+"\n")
	}
	if o.Hooks {
		for _, h := range hooks {
			documents = append(documents, strings.TrimSpace(h.Manifest)+"\n")
		}
	}
	return documents, nil
}

func renderFiles(c *chart.Chart, o Options) (map[string]string, error) {
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.37.0", Major: "1", Minor: "37"}
	capabilities.APIVersions = append(slices.Clone(capabilities.APIVersions), o.APIVersions...)
	values, err := chartutil.ToRenderValues(c, o.Values, chartutil.ReleaseOptions{Name: "nvfs-csi", Namespace: "nvfs-csi", IsInstall: true, Revision: 1}, capabilities)
	if err != nil {
		return nil, err // the schema refuses them
	}
	return engine.Render(c, values)
}

// Notes renders NOTES.txt.
func Notes(dir string, o Options) (string, error) {
	c, err := loader.Load(dir)
	if err != nil {
		return "", err
	}
	files, err := renderFiles(c, o)
	if err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Base(name) == "NOTES.txt" {
			return files[name], nil
		}
	}
	return "", fmt.Errorf("the chart has no NOTES.txt")
}

const deployHeader = `# Generated from charts/nvfs-csi; do not edit. %s
# Replace localhost/nvfs-csi by the image that you have built with the Dockerfile.
apiVersion: v1
kind: Namespace
metadata:
  name: nvfs-csi
  labels:
    pod-security.kubernetes.io/enforce: privileged
`

// Plain renders the manifests for kubectl apply: no hooks, and nothing that says
// that Helm manages it.
func Plain(dir, comment string, o Options) (string, error) {
	documents, err := Render(dir, o)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, deployHeader, comment)
	for _, document := range documents {
		b.WriteString("---\n")
		for _, line := range strings.SplitAfter(document, "\n") {
			key := strings.TrimSpace(line)
			if !strings.HasPrefix(key, "helm.sh/chart:") && !strings.HasPrefix(key, "app.kubernetes.io/managed-by:") && !strings.HasPrefix(key, "# Source:") {
				b.WriteString(line)
			}
		}
	}
	return b.String(), nil
}
