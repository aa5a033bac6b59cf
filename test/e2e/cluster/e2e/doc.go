// Package e2e tests the driver in a running cluster with two nodes (package
// localcluster): what the kubelet, the scheduler and the sidecars make of it.
// "make e2e-cluster" starts the cluster, runs the tests and takes it down.
package e2e
