package ndctl

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// dimmTimeout bounds the question for the modules' health, which the firmware
// answers.
const dimmTimeout = 30 * time.Second

// DIMM is what the firmware tells of one NVDIMM. What it does not tell is zero.
type DIMM struct {
	Name        string  `json:"name"`            // nmem0; given anew at a boot
	ID          string  `json:"id,omitempty"`    // of the module itself
	State       string  `json:"state,omitempty"` // "disabled", or "" when it works
	Health      string  `json:"health,omitempty"`
	Temperature float64 `json:"temperatureCelsius,omitempty"`
	Spares      int     `json:"sparesPercent,omitempty"`
	Used        int     `json:"usedPercent,omitempty"` // of its life
	Dirty       bool    `json:"dirtyShutdown,omitempty"`
	FlagError   string  `json:"flags,omitempty"` // what the platform complains of
}

// DIMMs returns the NVDIMMs with their health. Virtual ones have none.
func (m *System) DIMMs(ctx context.Context) ([]DIMM, error) {
	names, err := m.bus.list(dimmDevice)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	t := m.tool
	t.timeout = dimmTimeout
	out, err := t.run(ctx, nil, "list", "--dimms", "--health", "--idle")
	if err != nil {
		return nil, err
	}
	return parseDIMMs(out)
}

// ndctlDIMM is what ndctl list -DH prints of one module.
type ndctlDIMM struct {
	Dev    string `json:"dev"`
	ID     string `json:"id"`
	State  string `json:"state"`
	Health struct {
		State       string  `json:"health_state"`
		Temperature float64 `json:"temperature_celsius"`
		Spares      int     `json:"spares_percentage"`
		Used        int     `json:"life_used_percentage"`
		Shutdown    string  `json:"shutdown_state"`
	} `json:"health"`
	FlagSave    bool `json:"flag_failed_save"`
	FlagRestore bool `json:"flag_failed_restore"`
	FlagFlush   bool `json:"flag_failed_flush"`
	FlagMap     bool `json:"flag_failed_map"`
	FlagArm     bool `json:"flag_failed_arm"`
	FlagSmart   bool `json:"flag_smart_event"`
}

// parseDIMMs understands the list that ndctl prints for several modules, the
// bare object for one, and nothing at all for none.
func parseDIMMs(out []byte) ([]DIMM, error) {
	var found oneOrMany[ndctlDIMM]
	if err := json.Unmarshal(orEmptyList(out), &found); err != nil {
		return nil, fmt.Errorf("output of ndctl list: %w", err)
	}
	var all []DIMM
	for _, d := range found {
		if d.Dev == "" {
			continue
		}
		all = append(all, DIMM{Name: d.Dev, ID: d.ID, State: d.State, Health: d.Health.State, Temperature: d.Health.Temperature,
			Spares: d.Health.Spares, Used: d.Health.Used, Dirty: d.Health.Shutdown == "dirty", FlagError: d.flagged()})
	}
	return all, nil
}

func (d ndctlDIMM) flagged() string {
	for _, f := range []struct {
		set  bool
		text string
	}{
		{d.FlagArm, "not armed: the next power cut loses its content"},
		{d.FlagSave, "the last save failed: its content may be lost"},
		{d.FlagRestore, "the last restore failed: its content may be lost"},
		{d.FlagFlush, "the last flush failed: its content may be lost"},
		{d.FlagMap, "it could not be mapped"},
		{d.FlagSmart, "it reports an event: ndctl list -DH"},
	} {
		if f.set {
			return f.text
		}
	}
	return ""
}

// oneOrMany decodes a JSON list, or an object as a list of one.
type oneOrMany[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *oneOrMany[T]) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		var many []T
		if err := json.Unmarshal(data, &many); err != nil {
			return err
		}
		*l = many
		return nil
	}
	var one T
	if err := json.Unmarshal(data, &one); err != nil {
		return err
	}
	*l = oneOrMany[T]{one}
	return nil
}

func orEmptyList(out []byte) []byte {
	for _, c := range out {
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return out
		}
	}
	return []byte("[]")
}
