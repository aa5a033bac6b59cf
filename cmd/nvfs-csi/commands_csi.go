//go:build !nvfstools

package main

import "github.com/spf13/cobra"

// csiCommands are those that bring gRPC, protobuf and Kubernetes modules. The
// build tag nvfstools leaves them out: what remains is bin/nvfs, which starts
// in half the time and with half the memory.
func csiCommands() []*cobra.Command {
	return []*cobra.Command{newDemoCommand(), newNodeCommand(), newControllerCommand()}
}

// clusterCommands are the benchmarks that need a client of Kubernetes.
func clusterCommands() []*cobra.Command { return []*cobra.Command{newBenchClusterCommand()} }
