package sim

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/placement"
	"github.com/muster-serve/muster/sim/renting"
)

// An Outcome is the outcome of a query. Every query has exactly one.
type Outcome uint8

const (
	// Served: an answer has reached the gateway, in time or late.
	Served Outcome = iota
	// Rejected: the policy has rejected the query.
	Rejected
	// Dropped: its deadline passed while it waited.
	Dropped
	// NeverServed: the query still waited at the end of the run.
	NeverServed
	// Lost: all attempts that a query may have have failed. This happens only with faults.
	Lost
)

func (o Outcome) String() string {
	return [...]string{"served", "rejected", "dropped", "never-served", "lost"}[o]
}

// OutcomeCounts counts queries by outcome. Late counts those that did not finish within their QoS
// target, whether served or not.
type OutcomeCounts struct {
	Queries     int `json:"queries"`
	Late        int `json:"late"`
	Served      int `json:"served"`
	Rejected    int `json:"rejected"`
	Dropped     int `json:"dropped"`
	NeverServed int `json:"never_served"`
	Lost        int `json:"lost,omitempty"`
	// Split counts the queries that ran as several parts.
	Split int `json:"split,omitempty"`
}

// Satisfaction is the share of the queries that met their QoS target, in 0..1. It is 1 if there are
// no queries.
func (c OutcomeCounts) Satisfaction() float64 {
	if c.Queries == 0 {
		return 1
	}
	return float64(c.Queries-c.Late) / float64(c.Queries)
}

// ModelResult is the result of one model.
type ModelResult struct {
	Model string `json:"model"`
	OutcomeCounts
	// QoSSatisfaction is the share of the queries that met the QoS target, in [0, 1], overall and
	// by size class; it is 1 for a class without queries.
	QoSSatisfaction         float64   `json:"qos_satisfaction"`
	QoSSatisfactionShared   float64   `json:"qos_satisfaction_shared"`
	QoSSatisfactionBaseOnly float64   `json:"qos_satisfaction_base_only"`
	Latency                 Quantiles `json:"latency_ms"`
	// Satisfied says that QoSSatisfaction is at least the model's QoSShare.
	Satisfied bool `json:"satisfied"`
	// EffectiveAccuracy is the mean accuracy of the answers of a family, and Variants the parts of
	// them that each variant gave; absent for a model.
	EffectiveAccuracy float64         `json:"effective_accuracy,omitempty"`
	Variants          []VariantResult `json:"variants,omitempty"`
}

// Quantiles are quantiles of the latency from arrival to answer, in ms, of the queries served, with
// an error of at most 0.1 %.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

func toQuantiles(h *hdrhistogram.Histogram) Quantiles {
	at := func(q float64) float64 { return roundTo(float64(h.ValueAtQuantile(q))/1e6, 6) }
	return Quantiles{at(50), at(95), at(99)}
}

// TypeResult is the result of the instances of one type.
type TypeResult struct {
	Type  string `json:"type"`
	Count int    `json:"count"`
	// Utilisation is the share of the time in which the instances were busy, in 0..1.
	Utilisation float64 `json:"utilisation"`
	Queries     int     `json:"queries"`
}

// Result is the result of a run. Except for DecisionCost it is a pure function of the Config.
type Result struct {
	Seed uint64 `json:"seed"`
	// Rate is the configured arrival rate in queries/s. Duration is the length of the run in
	// virtual time.
	Rate     float64       `json:"rate_qps"`
	Duration time.Duration `json:"-"`
	OutcomeCounts
	QoSSatisfaction         float64       `json:"qos_satisfaction"`
	QoSSatisfactionShared   float64       `json:"qos_satisfaction_shared"`
	QoSSatisfactionBaseOnly float64       `json:"qos_satisfaction_base_only"`
	Latency                 Quantiles     `json:"latency_ms"`
	Models                  []ModelResult `json:"models"`
	// EffectiveAccuracy is the mean accuracy of the answers; absent if there is no family.
	EffectiveAccuracy float64      `json:"effective_accuracy,omitempty"`
	Types             []TypeResult `json:"types"`
	// QueueMean and QueueLongest are the mean and largest numbers of queries that wait for an
	// assignment.
	QueueMean    float64 `json:"queue_mean"`
	QueueLongest int     `json:"queue_longest"`
	// FluidLimit is the highest rate of this mix, in queries/s, that the pool could serve if
	// queries could be divided at will.
	FluidLimit float64 `json:"fluid_limit_qps"`
	// Probes is the mean number of probes that gateways send for a query, while there is no leader.
	Probes float64 `json:"probes_per_query,omitempty"`
	// SplitFluidLimit is FluidLimit with queries split, as the models allow; 0 if none does.
	SplitFluidLimit float64 `json:"split_fluid_limit_qps,omitempty"`
	// Steps is the number of steps of the policy.
	Steps int `json:"steps"`
	// DecisionCost is the mean wall time of a step; 0 if there is no Config.Clock.
	DecisionCost time.Duration `json:"-"`
	// Satisfied: every model's target is met.
	Satisfied bool `json:"satisfied"`
	// Faults are the results of Config.Faults, in the order of their times.
	Faults []fleet.Result `json:"faults,omitempty"`
	// Placement tells how the models that instances hold changed.
	Placement *placement.Result `json:"placement,omitempty"`
	// Renting tells of the machines that were rented, and what they cost.
	Renting *renting.Result `json:"renting,omitempty"`

	latency          *hdrhistogram.Histogram // over all models
	shared, baseOnly OutcomeCounts           // by size class; Queries and Late only
}

// MarshalJSON adds the durations as numbers with a unit in their names.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	return json.Marshal(struct {
		plain
		DurationS      float64 `json:"duration_s"`
		DecisionCostUs float64 `json:"decision_cost_us,omitempty"`
	}{plain(r), r.Duration.Seconds(), float64(r.DecisionCost) / 1e3})
}

func (r *simulation) makeResult() *Result {
	steps, cost := r.fleet.Steps()
	res := &Result{
		Seed:         r.cfg.Seed,
		Rate:         r.cfg.Rate,
		Duration:     r.now,
		QueueLongest: r.queueLongest,
		FluidLimit:   roundTo(r.limit.Rate, 6),
		Steps:        steps,
		Satisfied:    true,
	}
	if r.splitLimit != r.limit {
		res.SplitFluidLimit = roundTo(r.splitLimit.Rate, 6)
	}
	all := r.models[0].latency
	if len(r.models) > 1 {
		all = newHistogram()
	}
	var classes [2]OutcomeCounts
	for i := range r.models {
		m := &r.models[i]
		mr := ModelResult{Model: m.Name, OutcomeCounts: m.counts, Latency: toQuantiles(m.latency)}
		mr.QoSSatisfaction = mr.Satisfaction()
		mr.QoSSatisfactionBaseOnly = m.classes[baseOnly].Satisfaction()
		mr.QoSSatisfactionShared = m.classes[shared].Satisfaction()
		for _, v := range r.variants[m.first:][:len(m.Variants)] {
			mr.Variants = append(mr.Variants, VariantResult{v.Name, v.Accuracy, v.served})
		}
		if len(mr.Variants) > 0 {
			mr.EffectiveAccuracy = roundTo(EffectiveAccuracy(mr.Variants), 6)
		}
		mr.Satisfied = m.counts.Late <= allowedLate(m.qosShare(), m.counts.Queries)
		res.Satisfied = res.Satisfied && mr.Satisfied
		res.Models = append(res.Models, mr)
		res.OutcomeCounts.add(m.counts)
		for class := range classes {
			classes[class].add(m.classes[class])
		}
		if len(r.models) > 1 {
			all.Merge(m.latency)
		}
	}
	res.EffectiveAccuracy = res.meanAccuracy()
	res.QoSSatisfaction = res.Satisfaction()
	res.shared, res.baseOnly = classes[shared], classes[baseOnly]
	res.QoSSatisfactionShared = res.shared.Satisfaction()
	res.QoSSatisfactionBaseOnly = res.baseOnly.Satisfaction()
	res.Latency, res.latency = toQuantiles(all), all
	if r.now > 0 {
		res.QueueMean = roundTo(r.queueSum/float64(r.now), 6)
	}
	for t, name := range r.types {
		tr := TypeResult{Type: name, Count: r.cfg.Pool.Of(name)}
		var busy time.Duration
		for i := range r.lanes {
			if l := &r.lanes[i]; l.instanceType == t {
				busy += r.serves.Lanes[i].Busy
				tr.Queries += r.serves.Lanes[i].Served
			}
		}
		if r.now > 0 {
			tr.Utilisation = roundTo(float64(busy)/float64(r.now)/float64(tr.Count), 6)
		}
		res.Types = append(res.Types, tr)
	}
	res.Faults = r.fleet.Results()
	if r.placed != nil {
		if res.Placement, r.err = r.placed.Result(r.now); r.err != nil {
			r.err = fmt.Errorf("write timeline: %w", r.err)
		}
	}
	if r.rental != nil {
		res.Renting = r.rental.Result()
	}
	probes := r.fleet.Probes()
	if r.balanced != nil {
		probes = r.balanced.asked
	}
	if probes > 0 {
		res.Probes = roundTo(float64(probes)/float64(r.next), 6)
	}
	if r.cfg.Clock != nil && steps > 0 {
		res.DecisionCost = cost / time.Duration(steps)
	}
	return res
}

// meanAccuracy is the mean accuracy of the answers, 0 if there is no family.
func (r *Result) meanAccuracy() float64 {
	var all []VariantResult
	family := false
	for _, m := range r.Models {
		if len(m.Variants) == 0 {
			all = append(all, VariantResult{Accuracy: 1, Served: m.Served})
		}
		all, family = append(all, m.Variants...), family || len(m.Variants) > 0
	}
	if !family {
		return 0
	}
	return roundTo(EffectiveAccuracy(all), 6)
}

func (c *OutcomeCounts) add(o OutcomeCounts) {
	c.Queries += o.Queries
	c.Late += o.Late
	c.Served += o.Served
	c.Rejected += o.Rejected
	c.Dropped += o.Dropped
	c.NeverServed += o.NeverServed
	c.Lost += o.Lost
	c.Split += o.Split
}

// allowedLate is how many of n queries may be late for the share to hold.
func allowedLate(qosShare float64, n int) int {
	return int(float64(n)*(1-qosShare) + 1e-9)
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(MaxLatency), 3) }

// roundTo rounds to the given decimals, because processors differ in the last digits.
func roundTo(x float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(x*scale) / scale
}
