package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// discovery is what `discover -o json` prints. The lists are never null.
type discovery struct {
	FlushModes []pmem.Mode           `json:"flushModes"` // that the CPU has instructions for
	Regions    []discoveredRegion    `json:"regions"`
	Namespaces []discoveredNamespace `json:"namespaces"`
	DIMMs      []ndctl.DIMM          `json:"dimms"`
	Problems   []string              `json:"problems"` // of the machine as a whole, each with its remedy
}

// discoveredRegion is a region with what can be done on it.
type discoveredRegion struct {
	ndctl.Region
	FlushModes []pmem.Mode `json:"flushModes"` // that make stores durable in it, best guess first
	Remark     string      `json:"remark,omitempty"`
}

// discoveredNamespace is a namespace with what is on it and what is wrong.
type discoveredNamespace struct {
	ndctl.Namespace
	Content string `json:"content,omitempty"`
	Remark  string `json:"remark,omitempty"`
}

func newDiscoverCommand() *cobra.Command {
	var regions regionFlags
	var output, prepare, lockDir string
	var yes bool
	cmd := &cobra.Command{
		Use:   "discover [-o table|json] [--emulate REGION] [--prepare REGION]",
		Short: "List persistent-memory regions and namespaces, and what this CPU can flush with",
		Long: "discover lists the machine's NVDIMMs, regions and namespaces, and says of everything\n" +
			"that cannot be used why, and what to do about it. With --emulate it lists emulated\n" +
			"regions instead. It changes nothing, except with --prepare.\n\n" +
			"--prepare REGION writes namespace labels for a region that has none, so that it can\n" +
			"be divided into namespaces. Everything that is in the region is lost. The name of the\n" +
			"region has to be typed again, or --yes given.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("-o %s: known are table and json", output)
			}
			if prepare != "" {
				return prepareRegion(cmd, &regions, prepare, lockDir, yes)
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
	cmd.Flags().StringVar(&prepare, "prepare", "", "initialise the labels of a region; what is in it is lost")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before --prepare")
	cmd.Flags().StringVar(&lockDir, "state-dir", defaultLockDir, "directory of the lock that the driver and --prepare share")
	regions.addTo(cmd)
	return cmd
}

// discover looks at the regions that are described, or at the machine's.
func discover(ctx context.Context, regions *regionFlags) (discovery, error) {
	d := discovery{FlushModes: pmem.CPUModes(), Regions: []discoveredRegion{}, Namespaces: []discoveredNamespace{}, DIMMs: []ndctl.DIMM{}, Problems: []string{}}
	m, err := regions.view()
	if err != nil {
		return d, err
	}
	all, err := m.Regions(ctx)
	if err != nil {
		return d, err
	}
	for _, r := range all {
		d.Regions = append(d.Regions, describeRegion(r))
	}
	namespaces, err := m.Namespaces(ctx)
	if err != nil {
		return d, err
	}
	for _, ns := range namespaces {
		d.Namespaces = append(d.Namespaces, describeNamespace(ctx, ns))
	}
	if system, real := m.(*ndctl.System); real {
		d.describeMachine(ctx, system)
	}
	return d, nil
}

// prepareRegion asks and then initialises labels.
func prepareRegion(cmd *cobra.Command, regions *regionFlags, name, lockDir string, yes bool) error {
	m, err := regions.manager(lockDir)
	if err != nil {
		return err
	}
	system, real := m.(*ndctl.System)
	if !real {
		return errors.New("--prepare is for real regions; an emulated one needs no labels")
	}
	if !yes {
		fmt.Fprintf(cmd.OutOrStdout(), "Everything in region %s will be lost: its namespaces, their filesystems, all data.\nType the name of the region to go on: ", name)
		answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if strings.TrimSpace(answer) != name {
			return errors.New("not confirmed; nothing was changed")
		}
	}
	if err := system.Prepare(cmd.Context(), name); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "region %s has labels now and can be divided\n", name)
	return err
}

func (d discovery) print(w io.Writer) error {
	fmt.Fprintln(w, "flush modes of this CPU:", joinModes(d.FlushModes))
	for _, problem := range d.Problems {
		fmt.Fprintln(w, "problem:", problem)
	}
	fmt.Fprintln(w)
	if len(d.Regions) == 0 {
		_, err := fmt.Fprintln(w, "no regions")
		return err
	}
	if err := d.printRegions(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := d.printNamespaces(w); err != nil {
		return err
	}
	return d.printDIMMs(w)
}

func (d discovery) printRegions(w io.Writer) error {
	table := bench.Table{Header: []string{"region", "numa", "size", "available", "largest extent", "align", "persistence", "flush modes", "remark"}}
	for _, r := range d.Regions {
		table.Add(r.Name, formatNode(r.NUMANode), formatSize(r.Size), formatSize(r.Available), formatSize(r.LargestExtent),
			formatSize(r.Align), orUnknown(string(r.PersistenceDomain)), joinModes(r.FlushModes), r.Remark)
	}
	return table.Write(w)
}

func (d discovery) printNamespaces(w io.Writer) error {
	if len(d.Namespaces) == 0 {
		_, err := fmt.Fprintln(w, "no namespaces")
		return err
	}
	table := bench.Table{Header: []string{"namespace", "region", "numa", "mode", "size", "in use", "device", "content", "remark"}}
	for _, n := range d.Namespaces {
		name := n.Name
		if name == "" {
			name = "(unnamed)"
		}
		table.Add(name, n.Region, formatNode(n.NUMANode), string(n.Mode), formatSize(n.Size), strconv.FormatBool(n.InUse), n.Device, n.Content, n.Remark)
	}
	return table.Write(w)
}

func (d discovery) printDIMMs(w io.Writer) error {
	if len(d.DIMMs) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	table := bench.Table{Header: []string{"NVDIMM", "id", "health", "life used", "remark"}}
	for _, m := range d.DIMMs {
		used := ""
		if m.Used > 0 {
			used = strconv.Itoa(m.Used) + " %"
		}
		table.Add(m.Name, m.ID, orUnknown(m.Health), used, dimmRemark(m))
	}
	return table.Write(w)
}

func joinModes(modes []pmem.Mode) string {
	names := make([]string, 0, len(modes))
	for _, m := range modes {
		names = append(names, string(m))
	}
	return strings.Join(names, " ")
}

func formatSize(bytes uint64) string { return bench.FormatSize(int64(bytes)) }

func formatNode(node int) string {
	if node < 0 {
		return "?"
	}
	return strconv.Itoa(node)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
