package colocate

import (
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/muster-serve/muster/leader/place"
)

//go:embed synthetic.json
var synthetic []byte

// Synthetic returns a machine and the profiles of eight models on it, in the shape that the Hera
// paper describes in words and pictures. Nothing of them was measured.
func Synthetic() (place.Machine, []*place.Profile, error) {
	var file struct {
		Cores     int                    `json:"cores"`
		Ways      int                    `json:"ways"`
		Bandwidth float64                `json:"bw_gbs"`
		Low       []string               `json:"low"`
		QPS       map[string][][]float64 `json:"qps"`
		HalfCores map[string]float64     `json:"membw_half_cores"`
	}
	m := place.Machine{}
	if err := json.Unmarshal(synthetic, &file); err != nil {
		return m, nil, fmt.Errorf("synthetic profiles: %w", err)
	}
	m = place.Machine{Cores: file.Cores, Ways: file.Ways, Bandwidth: file.Bandwidth}
	var all []*place.Profile
	for _, model := range []string{ // in the paper's order
		"DLRM-A", "DLRM-B", "DLRM-C", "DLRM-D", "NCF", "DIEN", "DIN", "WnD",
	} {
		p := &place.Profile{Model: model, QPS: file.QPS[model], Bandwidth: file.HalfCores[model]}
		for _, low := range file.Low {
			p.Low = p.Low || low == model
		}
		all = append(all, p)
	}
	return m, all, nil
}
