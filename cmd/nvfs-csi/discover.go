package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// discovery is what `discover -o json` prints.
type discovery struct {
	FlushModes []pmem.Mode       `json:"flushModes"` // that the CPU has instructions for
	Regions    []ndctl.Region    `json:"regions"`
	Namespaces []ndctl.Namespace `json:"namespaces"`
}

func newDiscoverCommand() *cobra.Command {
	var regions regionFlags
	var output string
	cmd := &cobra.Command{
		Use:   "discover [-o table|json] [--emulate REGION]",
		Short: "List persistent-memory regions and namespaces, and what this CPU can flush with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("-o %s: known are table and json", output)
			}
			d, err := discover(cmd.Context(), &regions)
			if err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(d)
			}
			return d.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	regions.addTo(cmd)
	return cmd
}

// discover looks at the regions that are described, if any.
func discover(ctx context.Context, regions *regionFlags) (discovery, error) {
	d := discovery{FlushModes: pmem.CPUModes(), Regions: []ndctl.Region{}, Namespaces: []ndctl.Namespace{}}
	m, err := regions.view()
	if m == nil || err != nil {
		return d, err
	}
	if d.Regions, err = m.Regions(ctx); err != nil {
		return d, err
	}
	d.Namespaces, err = m.Namespaces(ctx)
	return d, err
}

func (d discovery) print(w io.Writer) error {
	fmt.Fprint(w, "flush modes of this CPU:")
	for _, mode := range d.FlushModes {
		fmt.Fprintf(w, " %s", mode)
	}
	fmt.Fprint(w, "\n\n")
	if len(d.Regions) == 0 {
		_, err := fmt.Fprint(w, "no region was named: this version knows emulated regions only, which --emulate describes\n")
		return err
	}
	regions := bench.Table{Header: []string{"region", "numa", "size", "available", "largest extent", "align", "persistence", "remark"}}
	for _, r := range d.Regions {
		regions.Add(r.Name, strconv.Itoa(r.NUMANode), formatSize(r.Size), formatSize(r.Available), formatSize(r.LargestExtent),
			formatSize(r.Align), orUnknown(string(r.PersistenceDomain)), remark(r))
	}
	if err := regions.Write(w); err != nil {
		return err
	}
	if len(d.Namespaces) == 0 {
		_, err := fmt.Fprint(w, "\nno namespaces\n")
		return err
	}
	fmt.Fprintln(w)
	namespaces := bench.Table{Header: []string{"namespace", "region", "mode", "size", "in use", "device"}}
	for _, n := range d.Namespaces {
		namespaces.Add(n.Name, n.Region, string(n.Mode), formatSize(n.Size), strconv.FormatBool(n.InUse), n.Device)
	}
	return namespaces.Write(w)
}

func remark(r ndctl.Region) string {
	switch {
	case r.Unusable != "":
		return "unusable: " + r.Unusable
	case r.Emulated:
		return "emulated"
	}
	return ""
}

func formatSize(bytes uint64) string { return bench.FormatSize(int64(bytes)) }

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
