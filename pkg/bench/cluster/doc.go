// Package cluster runs fio in a Kubernetes cluster: Jobs from manifests that a
// user can apply by hand as well, once for each StorageClass, and collects what
// fio reports.
package cluster
