package main

import (
	"github.com/spf13/cobra"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure flush modes, filesystems side by side, or volumes in a cluster",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchFlushCommand(), newBenchFSCommand(), newBenchServeNullCommand())
	cmd.AddCommand(clusterCommands()...)
	return cmd
}
