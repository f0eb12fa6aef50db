package bench

import (
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

// A Report says how a run went. Its JSON keys are stable.
type Report struct {
	Started  time.Time `json:"started"`
	Workload Workload  `json:"workload"`
	// DurationS is the time over which queries were due, in seconds.
	DurationS float64 `json:"duration_s"`
	// Interrupted says that the run was cut short.
	Interrupted bool `json:"interrupted"`
	// GeneratorDelayMS is how late queries were sent. Latencies include it.
	GeneratorDelayMS Latencies `json:"generator_delay_ms"`
	// GeneratorOnSchedule is false where the generator itself was too slow, so that
	// the latencies say more about it than about the server.
	GeneratorOnSchedule bool          `json:"generator_on_schedule"`
	Models              []ModelReport `json:"models"`
}

// A ModelReport is a Report's part on one model.
type ModelReport struct {
	Model         string  `json:"model"`
	QoSTargetMS   float64 `json:"qos_target_ms"`
	QoSPercentile float64 `json:"qos_percentile"`
	Queries       int64   `json:"queries"` // that were due
	Answered      int64   `json:"answered"`
	Late          int64   `json:"late"`   // answered, past the QoS target
	Failed        int64   `json:"failed"` // not answered; Failures has the reasons
	// Unfinished queries were in flight when the run was cut short. They count
	// nowhere else.
	Unfinished int64     `json:"unfinished"`
	Failures   []Failure `json:"failures"`
	// QoSSatisfaction is the share of the queries, failed ones included, that
	// were answered within the QoS target, in [0, 1].
	QoSSatisfaction float64 `json:"qos_satisfaction"`
	QoSMet          bool    `json:"qos_met"` // QoSSatisfaction is QoSPercentile or more
	OfferedQPS      float64 `json:"offered_qps"`
	AchievedQPS     float64 `json:"achieved_qps"`     // answers a second
	ItemsPerSecond  float64 `json:"items_per_second"` // offered rows a second
	// of what was answered, from when it was due
	LatencyMS Latencies `json:"latency_ms"`

	latencies *hdrhistogram.Histogram
}

// Latencies is a distribution in ms.
type Latencies struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// A Failure is a reason why queries were not answered.
type Failure struct {
	Reason  string `json:"reason"`
	Count   int64  `json:"count"`
	Example string `json:"example"` // the first message
}

// QoSMet reports whether every model that had queries met its QoS target.
func (r *Report) QoSMet() bool {
	return !slices.ContainsFunc(r.Models,
		func(m ModelReport) bool { return m.Queries > 0 && !m.QoSMet })
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// round keeps three decimals.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

func latenciesOf(h *hdrhistogram.Histogram) Latencies {
	if h.TotalCount() == 0 {
		return Latencies{}
	}
	at := func(percentile float64) float64 { return milliseconds(quantile(h, percentile)) }
	return Latencies{
		Mean: round(h.Mean() / 1000),
		P50:  at(50), P90: at(90), P95: at(95), P99: at(99), P999: at(99.9), Max: at(100),
	}
}

// report sums up a run: its queries span span, the last answer came after
// elapsed, and cause is why it was cut short, if it was.
func (g *generator) report(start time.Time, span, elapsed time.Duration, cause error) *Report {
	r := &Report{
		Started:             start.UTC().Truncate(time.Millisecond),
		Workload:            g.config.Workload,
		DurationS:           round(span.Seconds()),
		Interrupted:         cause != nil,
		GeneratorDelayMS:    latenciesOf(g.delays),
		GeneratorOnSchedule: true,
	}
	for _, m := range g.models {
		// A tenth of the tightest target is what the delay may add unnoticed.
		if m.queries > 0 && quantile(g.delays, 99) > m.QoSTarget/10 {
			r.GeneratorOnSchedule = false
		}
		r.Models = append(r.Models, m.report(span, elapsed))
	}
	return r
}

func (m *recorder) report(span, elapsed time.Duration) ModelReport {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := ModelReport{
		Model:         m.Name,
		QoSTargetMS:   round(milliseconds(m.QoSTarget)),
		QoSPercentile: m.QoSPercentile,
		Queries:       m.queries,
		Answered:      m.latencies.TotalCount(),
		Late:          m.late,
		Failed:        m.failed,
		Unfinished:    m.unfinished,
		Failures:      []Failure{},
		LatencyMS:     latenciesOf(m.latencies),
		latencies:     m.latencies,
	}
	for _, reason := range slices.Sorted(maps.Keys(m.failures)) {
		r.Failures = append(r.Failures, *m.failures[reason])
	}
	if finished := r.Answered + r.Failed; finished > 0 {
		r.QoSSatisfaction = float64(r.Answered-r.Late) / float64(finished)
		r.QoSMet = r.QoSSatisfaction >= r.QoSPercentile/100
	}
	if span > 0 {
		r.OfferedQPS = round(float64(r.Queries) / span.Seconds())
		r.ItemsPerSecond = round(float64(m.items) / span.Seconds())
		r.AchievedQPS = round(float64(r.Answered) / max(span, elapsed).Seconds())
	}
	return r
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	if r.Workload.RateQPS > 0 {
		fmt.Fprintf(&b, "%.1f s of %s arrivals at %s queries/s, batch sizes %s, seed %d\n\n",
			r.DurationS, r.Workload.Arrivals, figures(r.Workload.RateQPS), r.Workload.BatchSizes,
			r.Workload.Seed)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(
		t,
		"model\tqueries\toffered/s\tanswered/s\tp50 ms\tp95 ms\tp99 ms\tmax ms\twithin "+
			"QoS\ttarget ms\tlate\terrors\t")
	for _, m := range r.Models {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f %%\t%g\t%d\t%d\t\n", m.Model,
			m.Queries,
			figures(m.OfferedQPS), figures(m.AchievedQPS),
			figures(m.LatencyMS.P50), figures(m.LatencyMS.P95), figures(m.LatencyMS.P99),
			figures(m.LatencyMS.Max),
			100*m.QoSSatisfaction, m.QoSTargetMS, m.Late, m.Failed)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, m := range r.Models {
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
				&b, "%s missed its QoS target: %.2f %% of the queries within %g ms, want %g %%\n",
				m.Model, 100*m.QoSSatisfaction, m.QoSTargetMS, m.QoSPercentile)
		}
	}
	if !r.GeneratorOnSchedule {
		fmt.Fprintf(
			&b,
			"The load generator could not keep its schedule: it sent queries up to %s ms late "+
				"(p99 %s ms), and\n"+
				"the latencies include that. Give it a lower rate, or a machine with cores to "+
				"spare.\n",
			figures(r.GeneratorDelayMS.Max), figures(r.GeneratorDelayMS.P99))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// figures writes x with three significant figures, whole from 100.
func figures(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3f", x)
}
