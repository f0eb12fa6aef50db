package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"time"

	"github.com/muster-serve/muster/sim/workload"
)

// A Search has the settings of FindThroughput.
type Search struct {
	// Queries makes a stream of queries with a mean rate in queries/s. Another seed gives other
	// arrivals at the same rate.
	Queries func(rate float64, seed uint64) (iter.Seq[workload.Query], error)
	// Workload describes Queries; its Seed is the first probe's.
	Workload Workload
	// Limit bounds the time of the whole search; > 0. A probe takes a fifteenth of it, or twenty
	// QoS targets if that is longer, because a rate slightly too high shows only after a queue has
	// grown; but never more than a quarter of Limit.
	Limit time.Duration
	// FirstRate is the first rate to probe, in queries/s; 0 means half the rate of queries sent one
	// after the other.
	FirstRate float64
	// Precision ends the search when the lowest failing rate exceeds the highest one that held by
	// less than this share of it; 0 means 0.05.
	Precision float64
	// MaxInFlight is [Config.MaxInFlight].
	MaxInFlight int
	// Progress, if set, is called with every probe when it ends.
	Progress func(Probe)
}

// A Probe is one run of a search at one rate.
type Probe struct {
	RateQPS   float64 `json:"rate_qps"`
	DurationS float64 `json:"duration_s"` // shorter than planned if the rate failed early
	Queries   int64   `json:"queries"`
	// QoSSatisfaction is the lowest of the models' shares, in [0, 1].
	QoSSatisfaction float64 `json:"qos_satisfaction"`
	Held            bool    `json:"held"` // every model met its QoS target
	// GeneratorOnSchedule is false if the probe may have failed because the generator was too slow.
	GeneratorOnSchedule bool `json:"generator_on_schedule"`
}

// A Throughput is the result of a search.
type Throughput struct {
	Workload Workload `json:"workload"` // RateQPS is AllowableQPS
	// AllowableQPS is the highest rate that held, in queries/s over all models; 0
	// if none did.
	AllowableQPS float64 `json:"allowable_throughput_qps"`
	// FailingQPS is the lowest rate above it that did not hold; 0 if no rate failed.
	FailingQPS float64 `json:"failing_qps"`
	// Complete is false if time ran out before the two rates were within Precision.
	Complete    bool    `json:"complete"`
	Interrupted bool    `json:"interrupted"`
	Probes      []Probe `json:"probes"`
}

// leastQueries is the least number of queries of a useful probe.
const leastQueries = 3

// FindThroughput searches the allowable throughput: the highest rate at which every model meets its
// QoS target. It doubles the rate from [Search.FirstRate] until a rate fails, and then bisects on a
// logarithmic scale. A rate whose result is close to the target is probed up to three times, each
// time with other arrivals, and the majority counts. It blocks until the search has ended.
func FindThroughput(ctx context.Context, server Server, models []*Model, s Search) (*Throughput,
	error) {
	t, err := newTimer()
	if err != nil {
		return nil, err
	}
	defer t.close()
	return findThroughput(ctx, server, models, s, t.wait)
}

// A searcher is the state of a search.
type searcher struct {
	Search
	server Server
	models []*Model
	wait   func(context.Context, time.Time) error
	end    time.Time
	found  Throughput
}

// errOutOfTime ends a search that has no time for another probe.
var errOutOfTime = errors.New("out of time")

func findThroughput(ctx context.Context, server Server, models []*Model, s Search,
	wait func(context.Context, time.Time) error) (*Throughput, error) {
	if s.Precision == 0 {
		s.Precision = 0.05
	}
	r := &searcher{
		Search: s, server: server, models: models, wait: wait, end: time.Now().Add(s.Limit),
	}
	r.found.Workload = s.Workload
	r.found.Probes = []Probe{}
	err := r.search(ctx)
	r.found.Workload.RateQPS = r.found.AllowableQPS
	switch {
	case err == nil:
		r.found.Complete = true
	case ctx.Err() != nil:
		r.found.Interrupted = true
	case !errors.Is(err, errOutOfTime):
		return nil, err
	}
	return &r.found, nil
}

func (s *searcher) search(ctx context.Context) error {
	rate, err := s.firstRate(ctx)
	if err != nil {
		return err
	}
	// A probe needs at least leastQueries queries.
	rate = max(rate, leastQueries/s.probeDuration().Seconds())
	for s.found.AllowableQPS == 0 || s.found.FailingQPS == 0 {
		held, err := s.holds(ctx, rate)
		if err != nil {
			return err
		}
		if held {
			s.found.AllowableQPS = rate
			rate *= 2
		} else {
			s.found.FailingQPS = rate
			rate /= 2
		}
		if rate*s.probeDuration().Seconds() < leastQueries {
			return nil
		}
	}
	for s.found.FailingQPS/s.found.AllowableQPS > 1+s.Precision {
		rate := math.Sqrt(s.found.FailingQPS * s.found.AllowableQPS)
		held, err := s.holds(ctx, rate)
		if err != nil {
			return err
		}
		if held {
			s.found.AllowableQPS = rate
		} else {
			s.found.FailingQPS = rate
		}
	}
	return nil
}

// firstRate is the rate at which the search begins.
func (s *searcher) firstRate(ctx context.Context) (float64, error) {
	if s.FirstRate > 0 {
		return s.FirstRate, nil
	}
	const n = 16
	queries, err := s.Queries(1, s.Workload.Seed)
	if err != nil {
		return 0, err
	}
	pick := rand.New(rand.NewPCG(s.Workload.Seed, 5))
	g := &generator{}
	for _, m := range s.models {
		g.models = append(g.models, newRecorder(m))
	}
	start := time.Now()
	sent := 0
	for q := range queries {
		m, err := g.modelOf(q)
		if err != nil {
			return 0, err
		}
		queryCtx, cancel := context.WithTimeout(ctx, m.Timeout)
		answer, err := s.server.Infer(queryCtx, m.request(q.BatchSize, pick))
		cancel()
		if err == nil {
			answer.Release()
		} else if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if sent++; sent == n || time.Since(start) > s.Limit/10 {
			break
		}
	}
	return 0.5 * float64(sent) / time.Since(start).Seconds(), nil
}

// holds probes a rate, and again if the result is close to the target, and reports whether the rate
// holds.
func (s *searcher) holds(ctx context.Context, rate float64) (bool, error) {
	held, failed := 0, 0
	for held < 2 && failed < 2 {
		p, clear, err := s.probe(ctx, rate)
		if err != nil {
			return false, err
		}
		if clear {
			return p.Held, nil
		}
		if p.Held {
			held++
		} else {
			failed++
		}
	}
	return held > failed, nil
}

// probe runs a probe at a rate. clear says that a repetition would hardly give another result.
func (s *searcher) probe(ctx context.Context, rate float64) (p Probe, clear bool, err error) {
	duration := s.probeDuration()
	if left := time.Until(s.end); left < duration {
		return Probe{}, false, errOutOfTime
	}
	seed := s.Workload.Seed + uint64(len(s.found.Probes))
	queries, err := s.Queries(rate, seed)
	if err != nil {
		return Probe{}, false, err
	}
	w := s.Workload
	w.RateQPS, w.Seed = rate, seed
	config := Config{
		Queries:     queries,
		Duration:    duration,
		MaxInFlight: s.MaxInFlight,
		Workload:    w,
		tolerable: func(model string) int {
			// Three times the misses that are allowed if all queries were this model's.
			return int(3*s.mayMiss(model)*rate*duration.Seconds()) + 2
		},
	}
	report, err := run(ctx, s.server, s.models, config, s.wait)
	if err != nil {
		return Probe{}, false, err
	}
	if err := ctx.Err(); err != nil {
		return Probe{}, false, err
	}
	p = Probe{
		RateQPS:             round(rate),
		DurationS:           report.DurationS,
		QoSSatisfaction:     1,
		Held:                !report.Interrupted && report.QoSMet(),
		GeneratorOnSchedule: report.GeneratorOnSchedule,
	}
	misses := int64(0)
	for _, m := range report.Models {
		p.Queries += m.Queries
		misses += m.Late + m.Failed
		if m.Queries > 0 {
			p.QoSSatisfaction = min(p.QoSSatisfaction, m.QoSSatisfaction)
		}
	}
	s.found.Probes = append(s.found.Probes, p)
	if s.Progress != nil {
		s.Progress(p)
	}
	return p, report.Interrupted || misses == 0, nil
}

// probeDuration is the longest duration of a probe; see [Search.Limit].
func (s *searcher) probeDuration() time.Duration {
	d := s.Limit / 15
	for _, m := range s.models {
		d = max(d, min(20*m.QoSTarget, s.Limit/4))
	}
	return d
}

// mayMiss is the share of a model's queries that may miss its QoS target.
func (s *searcher) mayMiss(model string) float64 {
	for _, m := range s.models {
		if m.Name == model {
			return 1 - m.QoSPercentile/100
		}
	}
	return 0
}

// String describes the result in one line.
func (t *Throughput) String() string {
	text := fmt.Sprintf("allowable throughput %s queries/s", figures(t.AllowableQPS))
	switch {
	case t.AllowableQPS == 0 && t.FailingQPS > 0:
		text = fmt.Sprintf("allowable throughput below %s queries/s", figures(t.FailingQPS))
	case t.AllowableQPS == 0:
		text = "allowable throughput unknown"
	case t.FailingQPS > 0:
		text += fmt.Sprintf(" (%s missed the QoS target)", figures(t.FailingQPS))
	default:
		text += " or more"
	}
	switch {
	case t.Interrupted:
		text += ", interrupted"
	case !t.Complete:
		text += ", the search had no more time"
	}
	return text
}

// String describes the probe's result in one line.
func (p Probe) String() string {
	outcome := "holds"
	if !p.Held {
		outcome = "fails"
	}
	text := fmt.Sprintf("%8s queries/s  %s: %.2f %% within QoS of %d queries in %.1f s",
		figures(p.RateQPS), outcome, 100*p.QoSSatisfaction, p.Queries, p.DurationS)
	if !p.GeneratorOnSchedule {
		text += " (the generator was late)"
	}
	return text
}
