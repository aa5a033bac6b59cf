package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// newBenchServeNullCommand is the process behind the null filesystem of
// `bench fs`. It says "ready" once it answers, and ends with the mount.
func newBenchServeNullCommand() *cobra.Command {
	var transport string
	cmd := &cobra.Command{
		Use:    "serve-null FILE MOUNTPOINT",
		Short:  "Serve a FUSE filesystem without metadata on persistent memory (started by bench fs)",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return serveNull(cmd.Context(), args[0], args[1], transport, func() { fmt.Fprintln(cmd.OutOrStdout(), "ready") })
		},
	}
	cmd.Flags().StringVar(&transport, "transport", "dev", "dev, uring or auto")
	return cmd
}

func serveNull(ctx context.Context, file, mountpoint, transport string, ready func()) (err error) {
	mapping, err := pmem.Open(file, pmem.Options{Emulated: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mapping.Close()) }()
	connection, err := fusefs.Mount(mountpoint, fusefs.MountOptions{Source: file, AllowOther: true, Transport: transport})
	if err != nil {
		return err
	}
	defer connection.Close()
	t, err := fusefs.NewTransport(connection, fusefs.NewNull(mapping), fusefs.Options{
		Transport: transport,
		OnReady:   func(fusefs.Session) { ready() },
	})
	if err == nil {
		err = t.Serve(ctx)
	}
	if err != nil {
		return errors.Join(err, fusefs.Detach(mountpoint))
	}
	return nil
}
