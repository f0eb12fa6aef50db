package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/sim/workload"
)

// FCFS simulates the way RIBBON's published tables were made, in steps of a millisecond and so
// much faster than [Run]: gaps between queries are whole milliseconds, Poisson distributed; a
// query goes, first come first served, to the first idle instance in the order of the types; its
// latency is a random one of the samples at its batch size, rounded to a millisecond. It is not
// safe for concurrent use.
type FCFS struct {
	FCFSConfig
	latencies [][][]int // by type, batch size: ms
	arrivals  map[uint64][]fcfsArrival
}

// An fcfsArrival is a query: when it comes, in ms, its batch size, and which sample it
// meets, in [0, 1).
type fcfsArrival struct {
	at, batch int
	luck      float64
}

// FCFSConfig describes the load.
type FCFSConfig struct {
	// MeanGap is the mean time between arrivals, > 0, and Target the QoS target, a
	// multiple of a millisecond.
	MeanGap, Target time.Duration
	BatchSizes      *workload.BatchSizes
	// Queries is how many arrive in a run, and Seeds of how many runs an estimate is
	// the mean; >= 1.
	Queries, Seeds int
}

// RIBBONTable is the load of RIBBON's table of a model, mtwnd or dien, and the types
// in the table's order.
func RIBBONTable(model string) (cfg FCFSConfig, types []string, err error) {
	cfg = FCFSConfig{BatchSizes: workload.RIBBON(), Queries: 20_000, Seeds: 1}
	switch model {
	case "mtwnd":
		cfg.MeanGap, cfg.Target = 1500*time.Microsecond, 21*time.Millisecond
		return cfg, []string{"g4dn.xlarge", "c5.2xlarge", "r5n.large"}, nil
	case "dien":
		cfg.MeanGap, cfg.Target = 2*time.Millisecond, 30*time.Millisecond
		return cfg, []string{"g4dn.xlarge", "r5n.large", "c5.2xlarge"}, nil
	}
	return cfg, nil, fmt.Errorf("no table of model %q was published, but of mtwnd and dien", model)
}

// Samples have what was measured of models; [profiles.Samples] are some.
type Samples interface {
	Series(model string, t profiles.InstanceType) (*profiles.Series, error)
}

// NewFCFS reads the latencies of a model on types from samples, times scale[i] on the i-th type;
// nil: as they are.
func NewFCFS(cfg FCFSConfig, samples Samples, model string, types []string, scale []float64) (*FCFS,
	error) {
	if cfg.MeanGap <= 0 || cfg.Target <= 0 || cfg.Queries < 1 || cfg.Seeds < 1 {
		return nil, fmt.Errorf("mean gap %v, QoS target %v, %d queries, %d seeds: want all above 0",
			cfg.MeanGap, cfg.Target, cfg.Queries, cfg.Seeds)
	}
	f := &FCFS{FCFSConfig: cfg, arrivals: map[uint64][]fcfsArrival{}}
	for i, t := range types {
		series, err := samples.Series(model, profiles.InstanceType(t))
		if err != nil {
			return nil, err
		}
		factor := 1.0
		if scale != nil {
			factor = scale[i]
		}
		cells := make([][]int, cfg.BatchSizes.Largest()+1)
		for b := range cells {
			for _, d := range series.At(b) {
				cells[b] = append(cells[b], int(math.Round(factor*float64(d)/1e6)))
			}
		}
		f.latencies = append(f.latencies, cells)
	}
	return f, nil
}

// Evaluate is the share of queries within QoS, of the same queries for every configuration.
func (f *FCFS) Evaluate(ctx context.Context, c plan.Configuration) (plan.Estimate, error) {
	shares := make([]float64, f.Seeds)
	for seed := range shares {
		if err := ctx.Err(); err != nil {
			return plan.Estimate{}, err
		}
		shares[seed] = f.Satisfaction(c, uint64(seed))
	}
	mean, standardError := meanAndError(shares)
	return plan.Estimate{Value: mean, StdErr: standardError}, nil
}

// Satisfaction is the share of queries within QoS in one run on c, counts by the types' order.
func (f *FCFS) Satisfaction(c plan.Configuration, seed uint64) float64 {
	if f.arrivals[seed] == nil {
		f.arrivals[seed] = f.draw(seed)
	}
	return f.run(c, f.arrivals[seed])
}

// draw makes the queries of a run.
func (f *FCFS) draw(seed uint64) []fcfsArrival {
	r := rand.New(rand.NewPCG(seed, 0))
	gap := distuv.Poisson{Lambda: float64(f.MeanGap) / 1e6, Src: r}
	all := make([]fcfsArrival, f.Queries)
	now := 0
	for i := range all {
		now += int(gap.Rand())
		all[i] = fcfsArrival{now, f.BatchSizes.Draw(r), r.Float64()}
	}
	return all
}

func (f *FCFS) run(c plan.Configuration, arrivals []fcfsArrival) float64 {
	var types, free []int // by instance: its type, and when it is idle, ms
	for t, n := range c {
		for range n {
			types, free = append(types, t), append(free, 0)
		}
	}
	if len(types) == 0 {
		return 0
	}
	target := int(f.Target / time.Millisecond)
	met := 0
	for _, q := range arrivals {
		// The first that is idle; if none is, the first of those that are next.
		on := 0
		for i, at := range free {
			if at <= q.at {
				on = i
				break
			}
			if at < free[on] {
				on = i
			}
		}
		samples := f.latencies[types[on]][q.batch]
		done := max(q.at, free[on]) + samples[int(q.luck*float64(len(samples)))]
		free[on] = done
		if done-q.at <= target {
			met++
		}
	}
	return float64(met) / float64(len(arrivals))
}
