package sim

import (
	"encoding/json"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/muster-serve/muster/sim/fleet"
)

// An Outcome is what became of a query. Every query has exactly one.
type Outcome uint8

const (
	// Served: an answer has reached the gateway, in time or late.
	Served Outcome = iota
	// Rejected by the policy, at once.
	Rejected
	// Dropped: its deadline passed while it waited.
	Dropped
	// NeverServed: it still waited when nothing more happened.
	NeverServed
	// Lost: as many attempts as a query may have have failed. Only faults do that.
	Lost
)

func (o Outcome) String() string {
	return [...]string{"served", "rejected", "dropped", "never-served", "lost"}[o]
}

// Counts are queries by outcome. Late are those that did not finish within
// their QoS target, whether served or not.
type Counts struct {
	Queries     int `json:"queries"`
	Late        int `json:"late"`
	Served      int `json:"served"`
	Rejected    int `json:"rejected"`
	Dropped     int `json:"dropped"`
	NeverServed int `json:"never_served"`
	Lost        int `json:"lost,omitempty"`
}

// Satisfaction is the share of the queries that met their QoS target, in 0..1.
// Of no queries it is 1.
func (c Counts) Satisfaction() float64 {
	if c.Queries == 0 {
		return 1
	}
	return float64(c.Queries-c.Late) / float64(c.Queries)
}

// ModelResult is what became of one model's queries.
type ModelResult struct {
	Model string `json:"model"`
	Counts
	// QoSSatisfaction is the share that met the QoS target, overall and by size
	// class; a class without queries counts as satisfied.
	QoSSatisfaction         float64   `json:"qos_satisfaction"`
	QoSSatisfactionShared   float64   `json:"qos_satisfaction_shared"`
	QoSSatisfactionBaseOnly float64   `json:"qos_satisfaction_base_only"`
	Latency                 Quantiles `json:"latency_ms"`
	// Satisfied: the share is at least what the model asks for.
	Satisfied bool `json:"satisfied"`
}

// Quantiles of latency in ms, from arrival to answer, of the queries served; within 0.1 %.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

func quantiles(h *hdrhistogram.Histogram) Quantiles {
	at := func(q float64) float64 { return round(float64(h.ValueAtQuantile(q))/1e6, 6) }
	return Quantiles{at(50), at(95), at(99)}
}

// TypeResult is what the instances of one type did.
type TypeResult struct {
	Type  string `json:"type"`
	Count int    `json:"count"`
	// Utilisation is the share of the time that they were busy, in 0..1.
	Utilisation float64 `json:"utilisation"`
	Queries     int     `json:"queries"`
}

// Result is what a run showed. It is a pure function of the Config, DecisionCost excepted.
type Result struct {
	Seed uint64 `json:"seed"`
	// Rate is the arrival rate asked for, in queries/s, and Duration how long the run
	// took in virtual time.
	Rate     float64       `json:"rate_qps"`
	Duration time.Duration `json:"-"`
	Counts
	QoSSatisfaction         float64       `json:"qos_satisfaction"`
	QoSSatisfactionShared   float64       `json:"qos_satisfaction_shared"`
	QoSSatisfactionBaseOnly float64       `json:"qos_satisfaction_base_only"`
	Latency                 Quantiles     `json:"latency_ms"`
	Models                  []ModelResult `json:"models"`
	Types                   []TypeResult  `json:"types"`
	// QueueMean and QueueLongest count queries that wait for an assignment.
	QueueMean    float64 `json:"queue_mean"`
	QueueLongest int     `json:"queue_longest"`
	// FluidLimit is what the pool could serve of this mix if queries were water, in queries/s.
	FluidLimit float64 `json:"fluid_limit_qps"`
	// Steps are the times the policy was asked.
	Steps int `json:"steps"`
	// DecisionCost is the mean wall time of a step; 0 without Config.Clock.
	DecisionCost time.Duration `json:"-"`
	// Satisfied: every model's target is met.
	Satisfied bool `json:"satisfied"`
	// Faults are what came of Config.Faults, by time.
	Faults []fleet.Result `json:"faults,omitempty"`

	latency          *hdrhistogram.Histogram // of all models
	shared, baseOnly Counts                  // by size class; Queries and Late only
}

// MarshalJSON adds what JSON has no type for.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	return json.Marshal(struct {
		plain
		DurationS      float64 `json:"duration_s"`
		DecisionCostUs float64 `json:"decision_cost_us,omitempty"`
	}{plain(r), r.Duration.Seconds(), float64(r.DecisionCost) / 1e3})
}

func (r *run) result() *Result {
	res := &Result{
		Seed:         r.cfg.Seed,
		Rate:         r.cfg.Rate,
		Duration:     r.now,
		QueueLongest: r.queueLongest,
		FluidLimit:   round(r.limit.Rate, 6),
		Steps:        r.steps,
		Satisfied:    true,
	}
	all := r.models[0].latency
	if len(r.models) > 1 {
		all = newHistogram()
	}
	var classes [2]Counts
	for i := range r.models {
		m := &r.models[i]
		mr := ModelResult{Model: m.Name, Counts: m.counts, Latency: quantiles(m.latency)}
		mr.QoSSatisfaction = mr.Satisfaction()
		mr.QoSSatisfactionBaseOnly = m.classes[baseOnly].Satisfaction()
		mr.QoSSatisfactionShared = m.classes[shared].Satisfaction()
		mr.Satisfied = m.counts.Late <= allowedLate(m.qosShare(), m.counts.Queries)
		res.Satisfied = res.Satisfied && mr.Satisfied
		res.Models = append(res.Models, mr)
		res.Counts.add(m.counts)
		for class := range classes {
			classes[class].add(m.classes[class])
		}
		if len(r.models) > 1 {
			all.Merge(m.latency)
		}
	}
	res.QoSSatisfaction = res.Satisfaction()
	res.shared, res.baseOnly = classes[shared], classes[baseOnly]
	res.QoSSatisfactionShared = res.shared.Satisfaction()
	res.QoSSatisfactionBaseOnly = res.baseOnly.Satisfaction()
	res.Latency, res.latency = quantiles(all), all
	if r.now > 0 {
		res.QueueMean = round(r.queueSum/float64(r.now), 6)
	}
	for t, name := range r.types {
		tr := TypeResult{Type: name, Count: r.cfg.Pool.Of(name)}
		var busy time.Duration
		for i := range r.lanes {
			if l := &r.lanes[i]; l.instanceType == t {
				busy += l.busy
				tr.Queries += l.served
			}
		}
		if r.now > 0 {
			tr.Utilisation = round(float64(busy)/float64(r.now)/float64(tr.Count), 6)
		}
		res.Types = append(res.Types, tr)
	}
	if r.fleet != nil {
		res.Faults = r.fleet.Results()
	}
	if r.cfg.Clock != nil && r.steps > 0 {
		res.DecisionCost = r.cost / time.Duration(r.steps)
	}
	return res
}

func (c *Counts) add(o Counts) {
	c.Queries += o.Queries
	c.Late += o.Late
	c.Served += o.Served
	c.Rejected += o.Rejected
	c.Dropped += o.Dropped
	c.NeverServed += o.NeverServed
	c.Lost += o.Lost
}

// allowedLate is how many of n queries may be late.
func allowedLate(qosShare float64, n int) int {
	return int(float64(n)*(1-qosShare) + 1e-9)
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(MaxLatency), 3) }

// round keeps a few decimals, for processors differ in the last digits.
func round(x float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(x*scale) / scale
}
