package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// Reference is what an earlier document says about a workload of ours: figures
// of other machines, of which only the ratios can be compared.
type Reference struct {
	Row     string           `json:"row"`     // the ID of our row
	Source  string           `json:"source"`  // the document
	Setting string           `json:"setting"` // how it was measured there
	Unit    string           `json:"unit"`
	Better  string           `json:"better"`
	Base    string           `json:"base"` // which of the values the ratios refer to
	Values  []ReferenceValue `json:"values"`
	// OwnBase and Own are what to set beside them: "" is ext4, nothing is NVFS
	// and its peers.
	OwnBase string   `json:"ownBase,omitempty"`
	Own     []string `json:"own,omitempty"`
	Note    string   `json:"note,omitempty"`
}

// ReferenceValue is one figure, in the unit of its Reference.
type ReferenceValue struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

//go:embed reference.json
var referenceData []byte

// References are the figures of all documents.
func References() ([]Reference, error) {
	var all []Reference
	if err := json.Unmarshal(referenceData, &all); err != nil {
		return nil, fmt.Errorf("embedded reference figures: %w", err)
	}
	for _, r := range all {
		if r.value(r.Base) <= 0 {
			return nil, fmt.Errorf("embedded reference figures: %s of %s has no figure of %q", r.Row, r.Source, r.Base)
		}
	}
	return all, nil
}

func (r Reference) value(name string) float64 {
	for _, v := range r.Values {
		if v.Name == name {
			return v.Value
		}
	}
	return 0
}

// Speed is how many times as fast as the base a value is.
func (r Reference) Speed(v ReferenceValue) float64 {
	if r.Better == lower {
		return r.value(r.Base) / v.Value
	}
	return v.Value / r.value(r.Base)
}
