package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

func newBenchFlushCommand() *cobra.Command {
	var opt bench.FlushOptions
	var regions regionFlags
	var modes []string
	var numa int
	cmd := &cobra.Command{
		Use:   "flush [flags] [PATH]",
		Short: "Measure persists by flush mode, size and number of writers",
		Long: "flush measures how long it takes to make 64 bytes to 1 MiB durable in each flush\n" +
			"mode that the memory at PATH allows, at one and at several writers, and says what\n" +
			"`auto` makes of it. PATH is a device, a file, a directory or the name of a\n" +
			"namespace (default /dev/shm); nothing in it is overwritten: a temporary file beside\n" +
			"it is used, or --scratch, which devdax and block devices need.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opt.Path = "/dev/shm"
			if len(args) == 1 {
				b, err := regions.resolve(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				opt.Path, opt.Emulated = b.path, opt.Emulated || b.emulated
			}
			for _, name := range modes {
				mode, err := pmem.ParseMode(name)
				if err != nil {
					return err
				}
				opt.Modes = append(opt.Modes, mode)
			}
			if cmd.Flags().Changed("numa") {
				opt.NUMANode = &numa
			}
			_, err := bench.RunFlush(cmd.Context(), opt, cmd.OutOrStdout())
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opt.JSONFile, "json", "", "also write the report to this file")
	flags.StringVar(&opt.Scratch, "scratch", "", "blank device or file to measure on; it is overwritten")
	flags.BoolVar(&opt.Emulated, "emulated", false, "the memory stands in for persistent memory: measure every mode of the CPU")
	flags.BoolVar(&opt.Save, "save", false, "keep the result for the flush mode auto on this node")
	flags.StringSliceVar(&modes, "modes", nil, "modes to measure (default: all that the memory allows)")
	flags.IntSliceVar(&opt.Sizes, "sizes", nil, "persist sizes in bytes")
	flags.IntSliceVar(&opt.Writers, "writers", nil, "numbers of concurrent writers")
	flags.DurationVar(&opt.Budget, "time", 10*time.Second, "how long to measure")
	flags.IntVar(&numa, "numa", 0, "NUMA node to run on when the memory does not say")
	regions.addTo(cmd)
	cmd.Example = fmt.Sprintf("  nvfs-csi bench flush --emulated /dev/shm\n  nvfs-csi bench flush --modes %s --save /mnt/pmem0", strings.Join([]string{string(pmem.CLWB), string(pmem.NT)}, ","))
	return cmd
}
