// Package sharing holds what `muster profile` has measured of models that share a machine: how many
// queries/s more workers bring, how long a batch takes, and how much slower models are beside each
// other. The file is what `muster place hera` reads. Who uses it for a model asks [File.Check]
// first.
//
// The package has no clock and no network.
package sharing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/document"
)

// A File is the measurements of some models on one machine. Its JSON form has the fields of `muster
// place hera` and more.
type File struct {
	Note    string  `json:"note,omitempty"`
	Machine Machine `json:"machine"`
	// Cores is how many cores the machine's workers can have, Ways how many ways of its last-level
	// cache can be parted; 0: none. Bandwidth is its memory's, GB/s, measured as BandwidthBy says.
	Cores       int     `json:"cores"`
	Ways        int     `json:"ways"`
	Bandwidth   float64 `json:"bw_gbs"`
	BandwidthBy string  `json:"bandwidth_by"`
	// Low are the models whose queries/s rise little with more workers.
	Low []string `json:"low"`
	// QPS is by model, workers (0 to Cores) and ways (0 to Ways): the most queries/s within the QoS
	// target. It is beside workers of the same model, and none of others.
	QPS map[string][][]float64 `json:"qps"`
	// HalfBandwidth is by model the GB/s that workers on half of the cores take.
	HalfBandwidth map[string]float64 `json:"membw_half_cores"`
	// Slowdown is by model and neighbour how much longer the model's queries take, each on half of
	// the cores, than without the neighbour; SlowdownError is its relative standard error.
	Slowdown      map[string]map[string]float64 `json:"slowdown,omitempty"`
	SlowdownError map[string]map[string]float64 `json:"slowdown_error,omitempty"`
	Models        map[string]MeasuredModel      `json:"models"`
	// Latencies are by model, in order of workers and batch size.
	Latencies map[string][]Latency `json:"latencies"`
	// Steal is the part of the cores' time that the hypervisor gave to other machines, Others the
	// part that other processes took.
	Steal  float64 `json:"steal"`
	Others float64 `json:"others"`
	// Apart is the part of the measurements in which processors of a virtual machine did not share
	// a cache that they should; WaitedS is for how many seconds it was waited until they did.
	Apart   float64 `json:"apart,omitempty"`
	WaitedS float64 `json:"waited_s,omitempty"`
	// Unsure says which results have an error above 5 %, or were measured apart.
	Unsure []string `json:"unsure,omitempty"`
}

// A Machine is where the measurements are from.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`      // that this process could use
	Processors string `json:"processors"` // their numbers, as 0-3
}

// A MeasuredModel is the files that were measured.
type MeasuredModel struct {
	Version       int64   `json:"version"`
	Checksum      string  `json:"checksum"`
	QoSTargetMS   float64 `json:"qos_target_ms"`
	QoSPercentile float64 `json:"qos_percentile"`
	// LargestBatchSize is that of the queries in QPS and Slowdown: the largest that one worker
	// serves within half of the QoS target.
	LargestBatchSize int `json:"largest_batch_size"`
}

// A Latency is how much time of a core a batch took, beside workers of the same model.
type Latency struct {
	Workers   int     `json:"workers"`
	BatchSize int     `json:"batch_size"`
	P50       float64 `json:"p50_ms"`
	P90       float64 `json:"p90_ms"`
	P99       float64 `json:"p99_ms"`
	Error     float64 `json:"error"` // relative standard error of P50
	Samples   int     `json:"samples"`
}

// Read reads the form that Write writes. Errors name the file (name).
func Read(name string, r io.Reader) (*File, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f := &File{}
	if err := document.JSON(data, f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var errs []error
	for model, rows := range f.QPS {
		if _, ok := f.Models[model]; !ok {
			errs = append(errs, fmt.Errorf("%s: models.%s is missing", name, model))
		}
		if len(rows) != f.Cores+1 {
			errs = append(errs,
				fmt.Errorf("%s: qps.%s has %d rows, want %d", name, model, len(rows),
					f.Cores+1))
		}
		for w, row := range rows {
			if len(row) != f.Ways+1 || slices.ContainsFunc(row, func(x float64) bool {
				return !(x >= 0) || math.IsInf(x, 0)
			}) {
				errs = append(errs, fmt.Errorf("%s: qps.%s[%d] is %v, want %d numbers >= 0", name,
					model, w, row, f.Ways+1))
			}
		}
	}
	for a, by := range f.Slowdown {
		for b, x := range by {
			if !(x > 0) || math.IsInf(x, 0) {
				errs = append(errs,
					fmt.Errorf("%s: slowdown.%s.%s is %v, want a number > 0", name, a, b,
						x))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return f, nil
}

// Write writes the file.
func (f *File) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(f)
}

// A StaleError says that a model has changed since it was measured.
type StaleError struct {
	Model             string
	Measured, Present MeasuredModel
}

func (e *StaleError) Error() string {
	if e.Measured.Version != e.Present.Version {
		return fmt.Sprintf(
			"model %q was measured as version %d, and it is version %d now: run `muster profile "+
				"%s`",
			e.Model, e.Measured.Version, e.Present.Version, e.Model)
	}
	return fmt.Sprintf(
		"model %q, version %d, was measured with other files (checksum %.8s, now %.8s): run "+
			"`muster profile %s`", e.Model, e.Measured.Version, e.Measured.Checksum,
		e.Present.Checksum, e.Model)
}

// Check returns nil if the file's measurements of a model are of these files and on so many cores,
// 0 for any, else the reason why not: a [*StaleError] if the files are others.
func (f *File) Check(model string, version int64, checksum string, cores int) error {
	m, ok := f.Models[model]
	switch {
	case !ok:
		return fmt.Errorf("model %q was not measured: run `muster profile %s`", model, model)
	case m.Version != version || m.Checksum != checksum:
		return &StaleError{
			Model: model, Measured: m, Present: MeasuredModel{Version: version, Checksum: checksum},
		}
	case cores != 0 && cores != f.Cores:
		return fmt.Errorf(
			"model %q was measured on a machine with %d cores (%s), and this one has %d",
			model, f.Cores, f.Machine.CPU, cores)
	}
	return nil
}
