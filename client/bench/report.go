package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Report is the result of a run. Its JSON keys are stable.
type Report struct {
	Started  time.Time `json:"started"`
	Workload Workload  `json:"workload"`
	// DurationS is the time, in seconds, over which the queries' due times span.
	DurationS float64 `json:"duration_s"`
	// Interrupted says that ctx ended the run before its end.
	Interrupted bool `json:"interrupted"`
	// GeneratorDelayMS is how long after they were due queries were sent. Latencies include it.
	GeneratorDelayMS Latencies `json:"generator_delay_ms"`
	// GeneratorOnSchedule is false if the generator was so slow that the latencies do not measure
	// the server alone.
	GeneratorOnSchedule bool          `json:"generator_on_schedule"`
	Models              []ModelReport `json:"models"`
}

// A ModelReport is the part of a Report about one model.
type ModelReport struct {
	Model         string  `json:"model"`
	QoSTargetMS   float64 `json:"qos_target_ms"`
	QoSPercentile float64 `json:"qos_percentile"`
	Queries       int64   `json:"queries"` // queries that were due
	Answered      int64   `json:"answered"`
	// Verified counts the answers that agree with the reference's; see [TargetModel.Verify].
	Verified int64 `json:"verified,omitempty"`
	Late     int64 `json:"late"` // answered after the QoS target
	// Emulated counts the answers of agents that run no models: their latencies are those of a
	// profile, and their values say nothing.
	Emulated int64 `json:"emulated,omitempty"`
	// EffectiveAccuracy is the mean accuracy of the answers of a family, and Variants are those who
	// gave them, the most accurate first; absent for a model.
	EffectiveAccuracy float64          `json:"effective_accuracy,omitempty"`
	Variants          []VariantAnswers `json:"variants,omitempty"`
	// not answered; Failures has the reasons, by count
	Failed int64 `json:"failed"`
	// Unfinished counts queries that were in flight when ctx ended the run. No other field counts
	// them.
	Unfinished int64     `json:"unfinished"`
	Failures   []Failure `json:"failures"`
	// QoSSatisfaction is the share of the queries, failed ones included, that were answered within
	// their QoS target, in [0, 1].
	QoSSatisfaction float64 `json:"qos_satisfaction"`
	QoSMet          bool    `json:"qos_met"` // QoSSatisfaction reaches QoSPercentile
	OfferedQPS      float64 `json:"offered_qps"`
	AchievedQPS     float64 `json:"achieved_qps"`     // answers a second
	ItemsPerSecond  float64 `json:"items_per_second"` // offered rows a second
	// LatencyMS counts from when queries were due.
	LatencyMS Latencies `json:"latency_ms"`

	latencies *hdrhistogram.Histogram
}

// Latencies is a distribution in ms. In its percentiles a failed query counts as infinitely late:
// they are +Inf, in JSON null, where more queries failed than are above the percentile. Mean and
// Max are of the answered queries; +Inf if all failed.
type Latencies struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// A Failure is a reason why queries were not answered, and how many.
type Failure struct {
	Reason  string `json:"reason"`
	Count   int64  `json:"count"`
	Example string `json:"example"` // the first error's message
}

// QoSMet reports whether every model that had queries met its QoS target.
func (r *Report) QoSMet() bool {
	return !slices.ContainsFunc(r.Models,
		func(m ModelReport) bool { return m.Queries > 0 && !m.QoSMet })
}

// Wrong returns an error if an answer departs from the reference's; see [TargetModel.Verify].
func (r *Report) Wrong() error {
	for _, m := range r.Models {
		for _, f := range m.Failures {
			if f.Reason == errWrong.Error() {
				return fmt.Errorf("model %q: %d of %d answers are wrong, the first: %s", m.Model,
					f.Count, m.Answered+f.Count, f.Example)
			}
		}
	}
	return nil
}

func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// roundTo3 keeps three decimals.
func roundTo3(x float64) float64 { return math.Round(x*1000) / 1000 }

// MarshalJSON writes +Inf as null, as JSON has no infinity.
func (l Latencies) MarshalJSON() ([]byte, error) {
	type finite struct {
		Mean *float64 `json:"mean"`
		P50  *float64 `json:"p50"`
		P90  *float64 `json:"p90"`
		P95  *float64 `json:"p95"`
		P99  *float64 `json:"p99"`
		P999 *float64 `json:"p999"`
		Max  *float64 `json:"max"`
	}
	of := func(x float64) *float64 {
		if math.IsInf(x, 1) {
			return nil
		}
		return &x
	}
	return json.Marshal(finite{
		of(l.Mean), of(l.P50), of(l.P90), of(l.P95), of(l.P99), of(l.P999), of(l.Max),
	})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (l *Latencies) UnmarshalJSON(data []byte) error {
	inf := math.Inf(1)
	type plain Latencies // null leaves a field as it is
	return json.Unmarshal(data, (*plain)(l.set(inf)))
}

// set sets all fields to x.
func (l *Latencies) set(x float64) *Latencies {
	*l = Latencies{x, x, x, x, x, x, x}
	return l
}

// summarizeLatencies returns the distribution of answered queries with the latencies of h and of
// failed ones; 0 if there are none.
func summarizeLatencies(h *hdrhistogram.Histogram, failed int64) (l Latencies) {
	if h.TotalCount() == 0 {
		if failed > 0 {
			l.set(math.Inf(1))
		}
		return l
	}
	at := func(percentile float64) float64 {
		d := quantileOfAll(h, failed, percentile)
		if d == never {
			return math.Inf(1)
		}
		return toMs(d)
	}
	return Latencies{
		Mean: roundTo3(h.Mean() / 1000), P50: at(50), P90: at(90), P95: at(95), P99: at(99),
		P999: at(99.9), Max: toMs(percentileLatency(h, 100)),
	}
}

// makeReport makes the report of a run. span is the time over which its queries were due, elapsed
// the time until the last answer, and cause why the run ended early, nil if it did not.
func (g *generator) makeReport(start time.Time, span, elapsed time.Duration, cause error) *Report {
	r := &Report{
		Started:             start.UTC().Truncate(time.Millisecond),
		Workload:            g.config.Workload,
		DurationS:           roundTo3(span.Seconds()),
		Interrupted:         cause != nil,
		GeneratorDelayMS:    summarizeLatencies(g.delays, 0),
		GeneratorOnSchedule: true,
	}
	for _, m := range g.models {
		// The delay's p99 may be up to a tenth of the tightest QoS target.
		if m.queries > 0 && percentileLatency(g.delays, 99) > m.QoSTarget/10 {
			r.GeneratorOnSchedule = false
		}
		r.Models = append(r.Models, m.modelReport(span, elapsed))
	}
	return r
}

func (m *recorder) modelReport(span, elapsed time.Duration) ModelReport {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := ModelReport{
		Model:         m.Name,
		QoSTargetMS:   roundTo3(toMs(m.QoSTarget)),
		QoSPercentile: m.QoSPercentile,
		Queries:       m.queries,
		Answered:      m.latencies.TotalCount(),
		Late:          m.late,
		Emulated:      m.emulated,
		Failed:        m.failed,
		Unfinished:    m.unfinished,
		Failures:      []Failure{},
		LatencyMS:     summarizeLatencies(m.latencies, m.failed),
		latencies:     m.latencies,
	}
	if m.expected != nil {
		r.Verified = r.Answered
	}
	r.Variants, r.EffectiveAccuracy = m.variants.reportVariants()
	for _, reason := range slices.Sorted(maps.Keys(m.failures)) {
		r.Failures = append(r.Failures, *m.failures[reason])
	}
	if finished := r.Answered + r.Failed; finished > 0 {
		r.QoSSatisfaction = float64(r.Answered-r.Late) / float64(finished)
		r.QoSMet = missCounts{finished, r.Late + r.Failed}.reachesShare(r.QoSPercentile / 100)
	}
	if span > 0 {
		r.OfferedQPS = roundTo3(float64(r.Queries) / span.Seconds())
		r.ItemsPerSecond = roundTo3(float64(m.items) / span.Seconds())
		r.AchievedQPS = roundTo3(float64(r.Answered) / max(span, elapsed).Seconds())
	}
	return r
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	if r.Workload.RateQPS > 0 {
		fmt.Fprintf(&b, "%.1f s of %s arrivals at %s queries/s, batch sizes %s, seed %d\n\n",
			r.DurationS, r.Workload.Arrivals, formatFigures(r.Workload.RateQPS),
			r.Workload.BatchSizes,
			r.Workload.Seed)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	families := slices.ContainsFunc(r.Models,
		func(m ModelReport) bool { return len(m.Variants) > 0 })
	accuracy := func(m ModelReport) string { // beside the share within QoS
		switch {
		case !families:
			return ""
		case len(m.Variants) == 0:
			return "\t-"
		}
		return fmt.Sprintf("\t%.4f", m.EffectiveAccuracy)
	}
	title := ""
	if families {
		title = "\taccuracy"
	}
	fmt.Fprintf(
		t,
		"model\tqueries\toffered/s\tanswered/s\tp50 ms\tp95 ms\tp99 ms\tmax ms\twithin "+
			"QoS%s\ttarget ms\tlate\terrors\t\n", title)
	for _, m := range r.Models {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s%s\t%g\t%d\t%d\t\n", m.Model,
			m.Queries,
			formatFigures(m.OfferedQPS), formatFigures(m.AchievedQPS),
			formatFigures(m.LatencyMS.P50), formatFigures(m.LatencyMS.P95),
			formatFigures(m.LatencyMS.P99),
			formatFigures(m.LatencyMS.Max),
			Percent(m.QoSSatisfaction), accuracy(m), m.QoSTargetMS, m.Late, m.Failed)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Models, func(m ModelReport) bool { return m.Failed > 0 }) {
		fmt.Fprintln(&b, "A failed query counts as infinitely late; max is of the answered ones.")
	}
	for _, m := range r.Models {
		if len(m.Variants) > 0 {
			fmt.Fprintf(&b, "%s: answered by %s\n", m.Model, sharesOf(m.Variants))
		}
		if m.Emulated > 0 {
			fmt.Fprintf(&b,
				"%s: %d of %d answers are of emulated agents, which run no models: they "+
					"wait as long as a profile says\n", m.Model, m.Emulated, m.Answered)
		}
		if m.Verified > 0 {
			fmt.Fprintf(&b, "%s: %d answers agree with those of the model alone\n", m.Model,
				m.Verified)
		}
		for _, f := range m.Failures {
			fmt.Fprintf(&b, "%s: %d failed, the first: %s\n", m.Model, f.Count, f.Example)
		}
		if m.Unfinished > 0 {
			fmt.Fprintf(
				&b, "%s: %d were in flight when the run was cut short, and are not counted\n",
				m.Model, m.Unfinished)
		}
		if m.Queries > 0 && !m.QoSMet {
			fmt.Fprintf(
				&b, "%s missed its QoS target: %s of the queries within %g ms, want %g %%\n",
				m.Model, Percent(m.QoSSatisfaction), m.QoSTargetMS, m.QoSPercentile)
		}
	}
	if !r.GeneratorOnSchedule {
		fmt.Fprintf(
			&b,
			"The load generator could not keep its schedule: it sent queries up to %s ms late "+
				"(p99 %s ms), and\n"+
				"the latencies include that. Give it a lower rate, or a machine with cores to "+
				"spare.\n",
			formatFigures(r.GeneratorDelayMS.Max), formatFigures(r.GeneratorDelayMS.P99))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Percent writes a share with two decimals, rounded down: a share that misses a target must not
// read as the target, and what is not all not as 100.
func Percent(share float64) string {
	return fmt.Sprintf("%.2f %%", math.Floor(share*1e4+1e-6)/100)
}

// formatFigures writes x with three significant digits, and as a whole number from 100 on.
func formatFigures(x float64) string {
	switch {
	case math.IsInf(x, 1):
		return "∞"
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3f", x)
}
