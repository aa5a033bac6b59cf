package bench

import (
	"encoding/json"
	"fmt"
	"io"
)

// Report is everything that `bench fs` measured.
type Report struct {
	*Comparison
	Mounts []MountTime `json:"mounts,omitempty"`
	Checks []CheckTime `json:"fsck,omitempty"`
}

// Write prints all tables, the targets last.
func (r *Report) Write(w io.Writer) error {
	if err := r.Comparison.Write(w); err != nil {
		return err
	}
	if len(r.Checks) > 0 {
		fmt.Fprintln(w)
		if err := WriteCheckTimes(w, r.Checks); err != nil {
			return err
		}
	}
	if len(r.Mounts) > 0 {
		fmt.Fprintln(w)
		if err := WriteMountTimes(w, r.Mounts); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	return WriteTargets(w, r.Targets())
}

// WriteJSON writes the report, targets included.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		*Report
		Targets []TargetResult `json:"targets"`
	}{r, r.Targets()})
}
