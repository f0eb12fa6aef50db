package worker

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// costs share out what this machine costs while the agent runs: to each model the time of its runs,
// for the part of the machine that they have, and the rest to nobody. It is a collector of
// metrics. The methods may be called concurrently.
type costs struct {
	price func() float64 // USD per hour now; 0: not known
	desc  *prometheus.Desc

	mu    sync.Mutex
	at    time.Time // until when total counts
	total float64   // USD since the start
	runs  map[string]float64
	busy  float64 // the sum of runs
	// Invariant: rest never falls, as runs are known only when they end, and counters must not fall.
	rest float64
}

func newCosts(price func() float64, now time.Time) *costs {
	if price == nil {
		price = func() float64 { return 0 }
	}
	return &costs{
		price: price, at: now, runs: map[string]float64{},
		desc: prometheus.NewDesc("muster_cost_dollars_total",
			"What this machine has cost since the agent's start, in USD: the time of runs by model, "+
				"and the rest without one.", []string{"model"}, nil),
	}
}

// accrue adds what the machine has cost since the last call. The caller holds the lock.
func (c *costs) accrue(now time.Time) {
	if d := now.Sub(c.at); d > 0 {
		c.total += d.Hours() * c.price()
		c.at = now
	}
}

// noteRun notes a run of a model that ended now, and which part of the machine it had.
func (c *costs) noteRun(model string, took time.Duration, share float64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accrue(now)
	dollars := took.Hours() * c.price() * share
	c.runs[model] += dollars
	c.busy += dollars
}

// shares returns the cost of each model's runs, and the rest.
func (c *costs) shares(now time.Time) (runs map[string]float64, rest float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accrue(now)
	c.rest = max(c.rest, c.total-c.busy)
	return maps.Clone(c.runs), c.rest
}

// Describe implements prometheus.Collector.
func (c *costs) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements prometheus.Collector.
func (c *costs) Collect(to chan<- prometheus.Metric) {
	runs, rest := c.shares(time.Now())
	for _, model := range slices.Sorted(maps.Keys(runs)) {
		to <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, runs[model], model)
	}
	to <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, rest, "")
}
