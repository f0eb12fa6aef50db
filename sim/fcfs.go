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
	"github.com/muster-serve/muster/profiles/workload"
)

// FCFS simulates as RIBBON's authors did for their published tables. It works in steps of 1 ms and
// is much faster than [Run]. Gaps between queries are whole milliseconds with a Poisson
// distribution. Queries go, first come first served, to the first idle instance in the order of the
// types. A query's latency is a random sample at its batch size, rounded to 1 ms. An FCFS is not
// safe for concurrent use.
type FCFS struct {
	FCFSConfig
	latencies [][][]int // by type, batch size: ms
	arrivals  map[uint64][]fcfsArrival
}

// An fcfsArrival is a query: its arrival in ms, its batch size, and a number in [0, 1) that chooses
// its sample.
type fcfsArrival struct {
	at, batch int
	luck      float64
}

// FCFSConfig describes the load.
type FCFSConfig struct {
	// MeanGap is the mean time between arrivals, > 0. Target is the QoS target, a multiple of 1 ms.
	MeanGap, Target time.Duration
	BatchSizes      *workload.BatchSizes
	// Queries is the number of queries of a run, Seeds the number of runs over which an estimate is
	// averaged; both >= 1.
	Queries, Seeds int
}

// RIBBONTable returns the load for which RIBBON's table of a model, mtwnd or dien, was made, and
// the types in the table's order.
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

// Samples gives measured latencies of models; [profiles.Samples] implements it.
type Samples interface {
	Series(model string, t profiles.InstanceType) (*profiles.Series, error)
}

// NewFCFS reads the latencies of a model on types from samples, and multiplies those of the i-th
// type by scale[i]; a nil scale leaves them.
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

// Evaluate implements [plan.Evaluator]: it returns the share of queries within QoS. All
// configurations get the same queries.
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

// Satisfaction is the share of queries within QoS in one run on c, whose counts are in the types'
// order.
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
		// Take the first idle instance; if none is idle, the first of those that become idle
		// soonest.
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
