package main

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// mkfsOptions are the flags of `mkfs`.
type mkfsOptions struct {
	regions       regionFlags
	label         string
	uuid          string
	size          sizeFlag
	bytesPerInode sizeFlag
	force         bool
}

func newMkfsCommand() *cobra.Command {
	var opt mkfsOptions
	cmd := &cobra.Command{
		Use:   "mkfs [--label L] [--uuid U] [--size N] [--force] PATH",
		Short: "Make an NVFS volume",
		Long: "mkfs makes an empty NVFS volume on PATH, a devdax device, a file or the name of a\n" +
			"namespace. Unless --force is given it refuses a device that holds anything at all:\n" +
			"another filesystem, an NVFS volume, or data that it does not recognise.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return opt.run(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opt.label, "label", "", "name of the volume, at most 63 bytes")
	flags.StringVar(&opt.uuid, "uuid", "", "UUID of the volume (default: random)")
	flags.Var(&opt.size, "size", "bytes of PATH to use, with suffix K, M, G or T (default: all)")
	flags.Var(&opt.bytesPerInode, "bytes-per-inode", "make one inode for so many bytes (default: 16K)")
	flags.BoolVar(&opt.force, "force", false, "overwrite what PATH holds")
	opt.regions.addTo(cmd)
	return cmd
}

func (o *mkfsOptions) run(cmd *cobra.Command, arg string) error {
	b, err := o.regions.resolve(cmd.Context(), arg)
	if err != nil {
		return err
	}
	opt := mkfs.Options{Label: o.label, Size: uint64(o.size), BytesPerInode: uint64(o.bytesPerInode)}
	if o.uuid != "" {
		id, err := uuid.Parse(o.uuid)
		if err != nil || id == uuid.Nil {
			return fmt.Errorf("--uuid %q is not a UUID such as %s", o.uuid, uuid.New())
		}
		opt.UUID = id
	}
	if len(o.label) > maxLabel {
		return fmt.Errorf("--label has %d bytes; at most %d are allowed", len(o.label), maxLabel)
	}
	var sb *layout.Superblock
	err = awaitLetGo(cmd.Context(), b.path, func() (err error) {
		sb, err = formatDevice(cmd.Context(), b.path, b.emulated, o.force, opt)
		return err
	})
	var notBlank *notBlankError
	switch {
	case errors.As(err, &notBlank):
		return fmt.Errorf("%w: use --force to overwrite it", err)
	case errors.Is(err, pmem.ErrInUse):
		return fmt.Errorf("%w; a volume that is mounted or served cannot be formatted: unmount it first", err)
	case err != nil:
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: NVFS volume %s, %s\n", b.path, uuid.UUID(sb.UUID),
		formatSize(sb.Devices[0].Blocks*layout.BlockSize))
	return err
}

// maxLabel is what the driver allows, too.
const maxLabel = 63
