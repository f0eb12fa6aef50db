package sim

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/muster-serve/muster/profiles/workload"
)

// meanHistory is the mean of histories, in rows, as BenchmarkWork draws them.
const meanHistory = 100

// withHistories makes each query's user have a history that takes as long as some rows: log-normal
// with a sigma of 1, and cut so that no query takes longer than the largest batch size that was
// measured. The leader sees rows and the mean history if it does not see work.
func withHistories(seed uint64, stream iter.Seq[workload.Query],
	sees bool) iter.Seq[workload.Query] {
	return func(yield func(workload.Query) bool) {
		r := rand.New(rand.NewPCG(seed, 7))
		for q := range stream {
			history := int(min(math.Ceil(meanHistory*math.Exp(r.NormFloat64()-.5)), 300))
			if q.Work = q.BatchSize + history; sees {
				q.Users, q.Values = 1, history
			} else {
				q.BatchSize += meanHistory
			}
			if !yield(q) {
				return
			}
		}
	}
}

// withWork gives the configuration's queries candidates and histories.
func withWork(tb testing.TB, c *Config, sees bool) {
	c.Stream = func(c *Config) (iter.Seq[workload.Query], error) {
		a, err := workload.ParseArrivals("poisson", c.Rate)
		if err != nil {
			return nil, err
		}
		stream, err := workload.Queries(c.Seed, a, workload.Load{
			Model: c.Models[0].Name, Share: 1, BatchSizes: workload.MLPerf(),
		})
		return withHistories(c.Seed, stream, sees), err
	}
	c.Rate = 1
	stream, err := c.Stream(c)
	if err != nil {
		tb.Fatal(err)
	}
	seen := workload.NewQueryTrace("seen")
	for q := range stream {
		if sees {
			q.BatchSize = q.Work
			c.Models[0].Law.PerValue = 1
		}
		if seen.Add(q); seen.Len() == 20_000 {
			break
		}
	}
	c.Models[0].BatchSizes = seen.BatchSizes(c.Models[0].Name)
	c.Models[0].LargestRun = workload.LargestBatchSize
}

// TestWork: a query takes as long as its work says, whatever the leader sees.
func TestWork(t *testing.T) {
	var took [2]Quantiles
	for i, q := range []workload.Query{
		{Model: "rm2", BatchSize: 300}, {Model: "rm2", BatchSize: 100, Work: 300},
	} {
		cfg := reference(t, "rm2")
		cfg.Pool, cfg.Queries = Pool{{"g4dn.xlarge", 1}}, 1
		cfg.Stream = streamed([]workload.Query{q})
		took[i] = mustRun(t, cfg).Latency
	}
	if took[0] != took[1] {
		t.Errorf("a query of the work of 300 rows took %v, one of 300 rows %v", took[1], took[0])
	}
}

// BenchmarkWork finds the allowable throughput of queries with histories, where the policy sees
// work and where it sees rows. docs/internals/ranking.md has the results.
func BenchmarkWork(b *testing.B) {
	for _, model := range []string{"rm2", "wnd", "dien"} {
		for _, policy := range []string{"horizon", "kairos", "fcfs"} {
			for sees, name := range map[bool]string{true: "work", false: "rows"} {
				b.Run(fmt.Sprintf("%s/%s/%s", model, policy, name), func(b *testing.B) {
					for range b.N {
						cfg := reference(b, model)
						cfg.Pool = Pool{{"g4dn.xlarge", 2}, {"c5n.2xlarge", 3}, {"r5n.large", 2}}
						cfg.Policy = policy
						withWork(b, cfg, sees)
						found, err := FindThroughput(b.Context(), cfg, 3, nil)
						if err != nil {
							b.Fatal(err)
						}
						b.ReportMetric(found.Rate, "queries/s")
					}
				})
			}
		}
	}
}
