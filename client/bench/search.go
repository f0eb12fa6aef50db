package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/muster-serve/muster/profiles/workload"
)

// A Search has the settings of FindThroughput.
type Search struct {
	// Queries makes a stream of queries with a mean rate in queries/s. Another seed gives other
	// arrivals at the same rate.
	Queries func(rate float64, seed uint64) (iter.Seq[workload.Query], error)
	// Workload describes Queries; its Seed is the first probe's.
	Workload Workload
	// Limit bounds the time of the whole search; 0 means that of fifteen probes at the first rate,
	// and at least a minute. A probe takes a fifteenth of it, or twenty QoS targets up to a quarter
	// of it, because a rate slightly too high shows only after a queue has grown; and longer if it
	// needs more time for its queries, see FindThroughput.
	Limit time.Duration
	// FirstRate is the first rate to probe, in queries/s; 0 means half the rate of queries sent one
	// after the other.
	FirstRate float64
	// Precision ends the search when the lowest failing rate exceeds the highest one that held by
	// less than this share of it; 0 means 0.05.
	Precision float64
	// MaxInFlight is [Config.MaxInFlight].
	MaxInFlight int
	// Begun, if set, is called when the first rate is known, with how long a probe takes and why,
	// and how long the search may take.
	Begun func(string)
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
	// EffectiveAccuracy is the lowest of the families'; absent if no family was queried.
	EffectiveAccuracy float64 `json:"effective_accuracy,omitempty"`
	Held              bool    `json:"held"` // every model met its QoS target
	// Certain is whether the probe, together with those before it at this rate, leaves less than 5
	// % doubt about that; see FindThroughput.
	Certain bool `json:"certain"`
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
	Complete bool `json:"complete"`
	// NextS is how many seconds the next probe would have taken, if time ran out before it.
	NextS       float64 `json:"next_probe_s,omitempty"`
	Interrupted bool    `json:"interrupted"`
	Probes      []Probe `json:"probes"`
}

// doubt is how likely a decision about a rate may be wrong at most.
const doubt = 0.05

// minQueries returns how many queries tell that a share of a model's queries is within QoS: if
// none of so many misses it, the chance was at most doubt for any lower share.
func minQueries(share float64) int {
	if share >= 1 { // no number would do
		share = 0.999
	}
	return int(math.Ceil(math.Log(doubt) / math.Log(share)))
}

// A missCounts counts a model's queries at one rate, and those that missed the QoS target.
type missCounts struct{ queries, misses int64 }

// reachesShare reports whether a share of the queries, or more, are within QoS. A share that is a
// percentile divided by 100 may be off by a rounding error.
func (t missCounts) reachesShare(share float64) bool {
	return float64(t.queries-t.misses) >= share*float64(t.queries)-1e-9
}

// isWithin tells whether a share of the model's queries, or more, are within QoS, and whether that
// is certain: the counts would be so low (or so high) in at most doubt of all runs if just that
// share were. Queries are taken as independent of each other.
func (t missCounts) isWithin(share float64) (yes, certain bool) {
	yes = t.reachesShare(share)
	if share >= 1 {
		return yes, !yes || t.queries >= int64(minQueries(share))
	}
	b := distuv.Binomial{N: float64(t.queries), P: 1 - share}
	if yes {
		return true, b.CDF(float64(t.misses)) <= doubt
	}
	return false, 1-b.CDF(float64(t.misses-1)) <= doubt
}

// FindThroughput searches the allowable throughput: the highest rate at which every model meets its
// QoS target. It doubles the rate from [Search.FirstRate] until a rate fails, and then bisects on a
// logarithmic scale. It blocks until the search has ended.
//
// A probe sends each model at least so many queries that a target met by all of them leaves less
// than 5 % doubt: 299 for 99 %. If the queries that missed it leave more doubt, the rate is
// probed up to three times, each time with other arrivals, and all queries count together; then
// the share within QoS decides. A probe ends early when three times the misses that are allowed
// have been seen. The search also ends when a rate of a 32nd of the first one fails, as load
// cannot be the cause.
func FindThroughput(ctx context.Context, server Server, models []*TargetModel,
	s Search) (*Throughput, error) {
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
	models []*TargetModel
	wait   func(context.Context, time.Time) error
	end    time.Time // zero until Limit is known
	found  Throughput
}

// errOutOfTime ends a search that has no time for another probe.
var errOutOfTime = errors.New("out of time")

func findThroughput(ctx context.Context, server Server, models []*TargetModel, s Search,
	wait func(context.Context, time.Time) error) (*Throughput, error) {
	if s.Precision == 0 {
		s.Precision = 0.05
	}
	r := &searcher{
		Search: s, server: server, models: models, wait: wait,
	}
	if s.Limit > 0 {
		r.end = time.Now().Add(s.Limit)
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
	if err := s.beginSearch(rate); err != nil {
		return err
	}
	least := rate / 32
	for s.found.AllowableQPS == 0 || s.found.FailingQPS == 0 {
		held, err := s.probeRate(ctx, rate)
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
		if rate < least {
			return nil
		}
	}
	for s.found.FailingQPS/s.found.AllowableQPS > 1+s.Precision {
		rate := math.Sqrt(s.found.FailingQPS * s.found.AllowableQPS)
		held, err := s.probeRate(ctx, rate)
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

// beginSearch sets the limit, if it is not set, and says how long the search takes that begins at
// rate.
func (s *searcher) beginSearch(rate float64) error {
	duration, err := s.probeDuration(rate, s.Workload.Seed)
	if err != nil {
		return err
	}
	if s.Limit == 0 {
		s.Limit = max(time.Minute, 15*duration)
		s.end = time.Now().Add(s.Limit)
		if duration, err = s.probeDuration(rate, s.Workload.Seed); err != nil {
			return err
		}
	}
	if s.Begun != nil {
		var least []string
		for _, m := range s.models {
			least = append(least,
				fmt.Sprintf("%d to %s", minQueries(m.QoSPercentile/100), m.Name))
		}
		s.Begun(
			fmt.Sprintf("each probe sends enough queries for a result that is 95 %% certain, at "+
				"least %s; the first takes %.1f s at %s/s; the search ends after %v at the latest",
				strings.Join(least, ", "),
				duration.Seconds(), formatFigures(rate), s.Limit.Round(time.Second)))
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
	most := 6 * time.Second
	if s.Limit > 0 {
		most = s.Limit / 10
	}
	start := time.Now()
	sent := 0
	for q := range queries {
		m, err := g.modelOf(q)
		if err != nil {
			return 0, err
		}
		queryCtx, cancel := context.WithTimeout(ctx, m.Timeout)
		req, _ := m.makeRequest(q, pick)
		answer, err := s.server.Infer(queryCtx, req)
		cancel()
		if err == nil {
			answer.Release()
		} else if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if sent++; sent == n || time.Since(start) > most {
			break
		}
	}
	return 0.5 * float64(sent) / time.Since(start).Seconds(), nil
}

// probeRate probes a rate, up to three times until it is certain, and reports whether the rate
// holds.
func (s *searcher) probeRate(ctx context.Context, rate float64) (held bool, err error) {
	tallies := make([]missCounts, len(s.models))
	for range 3 {
		held, certain, err := s.runProbe(ctx, rate, tallies)
		if err != nil || certain {
			return held, err
		}
	}
	held, _ = s.decideOn(tallies)
	return held, nil
}

// decideOn tells whether all models meet their targets by their tallies, and whether that is
// certain.
func (s *searcher) decideOn(tallies []missCounts) (held, certain bool) {
	held, certain = true, true
	for i, m := range s.models {
		yes, sure := tallies[i].isWithin(m.QoSPercentile / 100)
		if !yes && sure {
			return false, true
		}
		held, certain = held && yes, certain && sure
	}
	return held, certain
}

// runProbe runs a probe at a rate and adds its queries to the tallies. held and certain are by all
// that the tallies have then.
func (s *searcher) runProbe(ctx context.Context, rate float64, tallies []missCounts) (held,
	certain bool,
	err error) {
	seed := s.Workload.Seed + uint64(len(s.found.Probes))
	duration, err := s.probeDuration(rate, seed)
	if err != nil {
		return false, false, err
	}
	if left := time.Until(s.end); left < duration {
		s.found.NextS = roundTo3(duration.Seconds())
		return false, false, errOutOfTime
	}
	queries, err := s.Queries(rate, seed)
	if err != nil {
		return false, false, err
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
	// Answers may come long after the last query was sent, and the search ends in time all the same.
	probing, cancel := context.WithDeadline(ctx, s.end)
	defer cancel()
	report, err := run(probing, s.server, s.models, config, s.wait)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && probing.Err() != nil {
		s.found.NextS = roundTo3(duration.Seconds())
		err = errOutOfTime
	}
	if err != nil {
		return false, false, err
	}
	p := Probe{
		RateQPS:             roundTo3(rate),
		DurationS:           report.DurationS,
		QoSSatisfaction:     1,
		Held:                !report.Interrupted && report.QoSMet(),
		GeneratorOnSchedule: report.GeneratorOnSchedule,
	}
	for i, m := range report.Models {
		p.Queries += m.Queries
		tallies[i].queries += m.Answered + m.Failed
		tallies[i].misses += m.Late + m.Failed
		if m.Queries > 0 {
			p.QoSSatisfaction = min(p.QoSSatisfaction, m.QoSSatisfaction)
		}
		if a := m.EffectiveAccuracy; a > 0 && (p.EffectiveAccuracy == 0 ||
			a < p.EffectiveAccuracy) {
			p.EffectiveAccuracy = a
		}
	}
	held, certain = s.decideOn(tallies)
	if report.Interrupted { // far more misses than are allowed
		held, certain = false, true
	}
	p.Certain = certain
	s.found.Probes = append(s.found.Probes, p)
	if s.Progress != nil {
		s.Progress(p)
	}
	return held, certain, nil
}

// probeDuration is the longest duration of a probe at a rate, with the arrivals of seed; see
// [Search.Limit]. It is errOutOfTime if its queries take more than the limit.
func (s *searcher) probeDuration(rate float64, seed uint64) (time.Duration, error) {
	d := s.Limit / 15
	for _, m := range s.models {
		if least := 20 * m.QoSTarget; s.Limit > 0 {
			d = max(d, min(least, s.Limit/4))
		} else {
			d = max(d, least)
		}
	}
	queries, err := s.Queries(rate, seed)
	if err != nil {
		return 0, err
	}
	lacking := map[string]int{} // queries, by model
	for _, m := range s.models {
		lacking[m.Name] = minQueries(m.QoSPercentile / 100)
	}
	for q := range queries {
		if lacking[q.Model] > 1 {
			lacking[q.Model]--
		} else {
			delete(lacking, q.Model)
		}
		if len(lacking) == 0 {
			return max(d, q.At+1), nil
		}
		if q.At > longestProbe {
			break
		}
	}
	s.found.NextS = longestProbe.Seconds()
	return 0, errOutOfTime
}

// longestProbe bounds the search for the time that a probe needs.
const longestProbe = 24 * time.Hour

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
	text := fmt.Sprintf("allowable throughput %s queries/s", formatFigures(t.AllowableQPS))
	switch {
	case t.AllowableQPS == 0 && t.FailingQPS > 0:
		text = fmt.Sprintf("allowable throughput below %s queries/s", formatFigures(t.FailingQPS))
	case t.AllowableQPS == 0:
		text = "allowable throughput unknown"
	case t.FailingQPS > 0:
		text += fmt.Sprintf(" (%s missed the QoS target)", formatFigures(t.FailingQPS))
	default:
		text += " or more"
	}
	switch {
	case t.Interrupted:
		text += ", interrupted"
	case !t.Complete:
		text += fmt.Sprintf("; the search ran out of time: the next probe takes %.1f s", t.NextS)
	}
	return text
}

// String describes the probe's result in one line.
func (p Probe) String() string {
	outcome := "holds"
	if !p.Held {
		outcome = "fails"
	}
	text := fmt.Sprintf("%8s queries/s  %s: %s within QoS of %d queries in %.1f s",
		formatFigures(p.RateQPS), outcome, Percent(p.QoSSatisfaction), p.Queries, p.DurationS)
	if p.EffectiveAccuracy > 0 {
		text += fmt.Sprintf(", accuracy %.4f", p.EffectiveAccuracy)
	}
	if !p.Certain {
		text += ", not certain"
	}
	if !p.GeneratorOnSchedule {
		text += " (the generator was late)"
	}
	return text
}
