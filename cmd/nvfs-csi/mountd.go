package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// newMountdCommand is the supervisor of serving processes.
func newMountdCommand() *cobra.Command {
	opt := mountd.SupervisorOptions{Version: version, ServeArgs: []string{mountd.SpareCommand}, KeeperArgs: []string{"keeper"}}
	cmd := &cobra.Command{
		Use:   "mountd",
		Short: "Supervise the processes that serve volumes (started by keeper and by mount)",
		Long: "mountd starts one serving process for each mounted volume, watches it, and starts\n" +
			"another one when it dies or hangs; whoever uses the volume waits for a moment and\n" +
			"gets no error. Ending mountd leaves the serving processes alone: the next one finds\n" +
			"them. \"nvfs-csi mount\" starts it when there is none; in a cluster the keeper does.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return mountd.RunSupervisor(cmd.Context(), opt)
		},
	}
	flags := cmd.Flags()
	addServiceFlags(flags, &opt.StateDir, &opt.LogDir, &opt.LinkFD, &opt.OnDemand)
	flags.DurationVar(&opt.HangTimeout, "hang-timeout", mountd.DefaultHangTimeout, "how long a serving process may work on one request until it is replaced")
	flags.StringVar(&opt.CgroupRoot, "cgroup-root", mountd.DefaultCgroupRoot, "where the unified cgroup hierarchy is mounted; serving processes get groups of their own below it if that can be written to")
	return cmd
}

// newKeeperCommand is the holder of FUSE connections.
func newKeeperCommand() *cobra.Command {
	opt := mountd.KeeperOptions{Args: []string{"mountd"}}
	var hangTimeout time.Duration
	var cgroupRoot string
	var linger bool
	cmd := &cobra.Command{
		Use:   "keeper",
		Short: "Hold the FUSE connections of a node and run mountd",
		Long: "keeper holds the connections of all mounted volumes, so that they outlive the\n" +
			"processes that serve them, and runs mountd, which starts those. It is the first\n" +
			"process of the mountd pod. When another keeper runs on the same state directory, as\n" +
			"during an upgrade, this one takes everything over from it while volumes are in use.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("hang-timeout") {
				opt.Args = append(opt.Args, "--hang-timeout", hangTimeout.String())
			}
			if cmd.Flags().Changed("cgroup-root") {
				opt.Args = append(opt.Args, "--cgroup-root", cgroupRoot)
			}
			err := mountd.RunKeeper(cmd.Context(), opt)
			if err == nil && linger {
				<-cmd.Context().Done()
			}
			return err
		},
	}
	flags := cmd.Flags()
	addServiceFlags(flags, &opt.StateDir, &opt.LogDir, &opt.LinkFD, &opt.OnDemand)
	flags.DurationVar(&hangTimeout, "hang-timeout", mountd.DefaultHangTimeout, "of mountd")
	flags.StringVar(&cgroupRoot, "cgroup-root", mountd.DefaultCgroupRoot, "of mountd")
	flags.BoolVar(&linger, "linger", false, "do nothing until told to end, once another keeper has taken over; a pod would start this one again, and it would take everything back")
	return cmd
}

// addServiceFlags adds the flags that keeper and mountd have in common.
func addServiceFlags(flags *pflag.FlagSet, stateDir, logDir *string, linkFD *int, onDemand *bool) {
	flags.StringVar(stateDir, "state-dir", mountd.DefaultStateDir, "directory of sockets and locks")
	flags.StringVar(logDir, "log-dir", "", "directory of the logs of what is started; standard error if empty")
	flags.IntVar(linkFD, "link-fd", 0, "descriptor of a connection to the process that has started this one")
	flags.BoolVar(onDemand, "on-demand", false, "end when nothing is mounted any more")
}
