package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/colocate"
	"github.com/muster-serve/muster/sim/latency"
)

// A sharedFleet is machines alike, whose models take equal parts of the work, or as work says.
type sharedFleet struct {
	machines, lanes int
	models          []string
	work            []float64 // by model, of 1
}

// latencies of the models of shared fleets, and their QoS targets.
var sharedModels = map[string]struct {
	latency.Fixed
	target time.Duration
}{
	"rm2":  {latency.Fixed{Base: 2000 * time.Microsecond, PerItem: 170 * time.Microsecond}, 350e6},
	"rm1":  {latency.Fixed{Base: 1000 * time.Microsecond, PerItem: 60 * time.Microsecond}, 150e6},
	"dien": {latency.Fixed{Base: 1000 * time.Microsecond, PerItem: 16 * time.Microsecond}, 35e6},
	"wnd":  {latency.Fixed{Base: 500 * time.Microsecond, PerItem: 12 * time.Microsecond}, 25e6},
}

// measuredSlowdowns are those of docs/internals/sharing.md, each of one lane beside another.
var measuredSlowdowns = profiles.Slowdowns{
	"rm2":  {"rm2": 1.02, "wnd": 1.04, "dien": 1.00, "rm1": 1.10},
	"rm1":  {"rm2": 1.22, "wnd": 1.08, "dien": 1.00, "rm1": 1.00},
	"dien": {"rm2": 1.13, "wnd": 1.06, "dien": 1.02, "rm1": 1.09},
	"wnd":  {"rm2": 1.00, "wnd": 1.01, "dien": 1.00, "rm1": 1.02},
}

// steepSlowdowns are of models that serve hardly more with more lanes: Hera's low worker
// scalability.
var steepSlowdowns = profiles.Slowdowns{"rm2": {"rm2": 1.3}, "wnd": {"wnd": 1.05}}

// throughput returns the allowable throughput of the fleet where each machine has so many lanes of
// a type, and each type's lanes hold some models. The leader knows the latencies that lanes have
// beside others that are busy for 85 % of the time.
func (f *sharedFleet) throughput(b *testing.B, slow profiles.Slowdowns, types []string,
	lanes map[string]int, holds map[string][]int) float64 {
	const busy = .85
	trace := workload.Trace()
	cfg := &Config{
		Queries: 6000, Seed: 1, RTT: 200 * time.Microsecond,
		Sharing: &colocate.Sharing{Slowdown: colocate.Pairs(f.models, slow)},
	}
	mean := 0.0
	for _, x := range Distribution(trace) {
		mean += x.Share * float64(x.BatchSize)
	}
	for k, name := range f.models {
		m := sharedModels[name]
		time := float64(m.Base) + mean*float64(m.PerItem)
		cfg.Models = append(cfg.Models, Model{
			Name: name, QoSTarget: m.target, Weight: f.work[k] / time * 1e6, BatchSizes: trace,
			Latencies: map[string]match.Latencies{}, Known: map[string]match.Latencies{},
		})
	}
	var machine []colocate.Lanes
	for _, t := range types {
		cfg.Pool = append(cfg.Pool, Instances{t, lanes[t] * f.machines})
		machine = append(machine, colocate.Lanes{Type: t, Count: lanes[t]})
		held, all := HeldModels{Type: t, Count: lanes[t] * f.machines}, 0.0
		for _, k := range holds[t] {
			held.Models = append(held.Models, f.models[k])
		}
		cfg.Holds = append(cfg.Holds, held)
		for _, k := range holds[t] {
			factor := 1.0
			for _, o := range types { // beside the other lanes, each of which runs what it holds
				n := float64(lanes[o])
				if o == t {
					n--
				}
				all = 0
				for _, other := range holds[o] {
					all += f.work[other]
				}
				for _, other := range holds[o] {
					if s := slow[f.models[k]][f.models[other]]; s > 0 {
						factor += (s - 1) * busy * n * f.work[other] / all
					}
				}
			}
			l := sharedModels[f.models[k]].Fixed
			cfg.Models[k].Latencies[t] = l
			cfg.Models[k].Known[t] = latency.Fixed{
				Base:    time.Duration(float64(l.Base) * factor),
				PerItem: time.Duration(float64(l.PerItem) * factor),
			}
		}
	}
	for range f.machines {
		cfg.Sharing.Machines = append(cfg.Sharing.Machines, machine)
	}
	found, err := FindThroughput(b.Context(), cfg, 2, nil)
	if err != nil {
		b.Fatal(err)
	}
	return found.Rate
}

// BenchmarkLayouts compares two layouts of machines whose lanes slow each other down: all lanes
// hold all models, or each model has lanes of its own, as many as serve the most. Its numbers are
// in docs/internals/sharing.md.
func BenchmarkLayouts(b *testing.B) {
	even, uneven := []float64{.5, .5}, []float64{.75, .25}
	for _, f := range []sharedFleet{
		{2, 2, []string{"rm2", "wnd"}, even}, {2, 2, []string{"rm2", "wnd"}, uneven},
		{3, 4, []string{"rm2", "wnd"}, even}, {3, 4, []string{"rm2", "wnd"}, uneven},
		{1, 8, []string{"rm2", "wnd"}, even}, {1, 8, []string{"rm2", "wnd"}, uneven},
		{3, 4, []string{"rm1", "wnd"}, even}, {3, 4, []string{"rm1", "rm2"}, even},
		{3, 4, []string{"dien", "rm2"}, even},
	} {
		for what, slow := range map[string]profiles.Slowdowns{
			"none": nil, "measured": measuredSlowdowns, "steep": steepSlowdowns,
		} {
			b.Run(fmt.Sprintf("%dx%d/%s-%s/%.0f/%s", f.machines, f.lanes, f.models[0], f.models[1],
				100*f.work[0], what), func(b *testing.B) {
				shared, parted := 0.0, 0.0
				for b.Loop() {
					shared = f.throughput(b, slow, []string{"all"},
						map[string]int{"all": f.lanes}, map[string][]int{"all": {0, 1}})
					first := int(f.work[0]*float64(f.lanes) + .5)
					for n := max(1, first-1); n < min(f.lanes, first+2); n++ {
						parted = max(parted, f.throughput(b, slow, []string{"a", "b"},
							map[string]int{"a": n, "b": f.lanes - n},
							map[string][]int{"a": {0}, "b": {1}}))
					}
				}
				b.ReportMetric(shared, "shared-qps")
				b.ReportMetric(parted, "parted-qps")
			})
		}
	}
}
