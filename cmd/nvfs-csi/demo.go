//go:build !nvfstools

package main

import (
	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/cmd/nvfs-csi/internal/demo"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

func newDemoCommand() *cobra.Command {
	var opt demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show one volume from creation to deletion, on emulated memory",
		Long: "demo starts the CSI driver on emulated persistent memory, creates a volume, formats\n" +
			"and mounts it, lets cp, diff and fio work on it, measures the same fio on ext4, and\n" +
			"deletes it again. It needs root, fio and a Go source tree, takes less than two\n" +
			"minutes, and leaves nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := pmem.ParseMode(opt.FlushMode); err != nil {
				return err
			}
			opt.Out = cmd.OutOrStdout()
			return demo.Run(cmd.Context(), opt)
		},
	}
	cmd.Flags().StringVar(&opt.Memory, "memory", "/dev/shm", "directory below which the memory that stands in for persistent memory is mounted")
	cmd.Flags().StringVar(&opt.FlushMode, "flush-mode", string(pmem.Auto), "StorageClass parameter flushMode of the volume")
	return cmd
}
