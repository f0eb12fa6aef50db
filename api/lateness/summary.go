package lateness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Key is what queries that were late, refused or failed are counted by.
type Key struct {
	Model string // or a family; "" if it is not known
	Cause Cause
	Agent string // whose doing it is; "" if it is none's, or not known
}

// A Sum is of queries.
type Sum struct {
	Count uint64
	Time  time.Duration // that the cause took of them
}

// A CauseCount is a Key and what was counted by it.
type CauseCount struct {
	Key
	Sum
}

// Mean is how long the cause took of a query, in the mean.
func (m *CauseCount) Mean() time.Duration {
	if m.Count == 0 {
		return 0
	}
	return m.Time / time.Duration(m.Count)
}

// compareMissed orders by count, the most frequent first.
func compareMissed(a, b CauseCount) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Model, b.Model),
		cmp.Compare(slices.Index(All, a.Cause), slices.Index(All, b.Cause)),
		cmp.Compare(a.Agent, b.Agent))
}

// A Summary is what a time's queries were late for. Its zero value is of no query.
type Summary struct {
	Last   time.Duration
	Missed []CauseCount      // the most frequent first
	Ended  map[string]uint64 // queries that were answered or failed, by model
}

// Of is the summary of one model, or of all for "".
func (s *Summary) Of(model string) Summary {
	if model == "" {
		return *s
	}
	of := Summary{Last: s.Last, Ended: map[string]uint64{model: s.Ended[model]}}
	for _, m := range s.Missed {
		if m.Model == model {
			of.Missed = append(of.Missed, m)
		}
	}
	return of
}

// Causes are the causes over all models, the most frequent first.
func (s *Summary) Causes() []CauseCount {
	sums := map[Key]Sum{}
	for _, m := range s.Missed {
		key := Key{Cause: m.Cause, Agent: m.Agent}
		sum := sums[key]
		sums[key] = Sum{sum.Count + m.Count, sum.Time + m.Time}
	}
	return sortedMissed(sums)
}

func sortedMissed(sums map[Key]Sum) []CauseCount {
	all := make([]CauseCount, 0, len(sums))
	for key, sum := range sums {
		all = append(all, CauseCount{key, sum})
	}
	slices.SortFunc(all, compareMissed)
	return all
}

// Total is how many queries have ended, and how many of them were missed. Queries that nobody has
// counted as ended, because they failed before a model was known, count as ended, too.
func (s *Summary) Total() (ended, missed uint64) {
	for _, n := range s.Ended {
		ended += n
	}
	for _, m := range s.Missed {
		missed += m.Count
	}
	return max(ended, missed), missed
}

// Sentence says what share was late, and why: "3.1 % late: 2.4 % vm-2 lacks CPU, 0.7 % waited for a
// lane". It is "" if nothing was late. It names most causes at most, and those of at least a
// twentieth of what is late.
func (s *Summary) Sentence(most int) string {
	ended, missed := s.Total()
	if missed == 0 {
		return ""
	}
	percent := func(n uint64) string { return formatPercent(float64(n) / float64(ended)) }
	causes := s.Causes()
	parts := make([]string, 0, most)
	for _, c := range causes {
		if len(parts) == most || len(parts) > 0 && c.Count*20 < missed {
			break
		}
		parts = append(parts, percent(c.Count)+" "+c.Cause.Short(c.Agent))
	}
	if len(causes) == 1 {
		return fmt.Sprintf("%s late: %s", percent(missed), causes[0].Cause.Short(causes[0].Agent))
	}
	return fmt.Sprintf("%s late: %s", percent(missed), strings.Join(parts, ", "))
}

// formatPercent formats a share with two significant digits, at least 0.1 %.
func formatPercent(share float64) string {
	switch p := 100 * share; {
	case p >= 9.95:
		return fmt.Sprintf("%.0f %%", p)
	case p < 0.1:
		return "< 0.1 %"
	default:
		return fmt.Sprintf("%.1f %%", p)
	}
}

// Explain returns the sentence, the evidence and what to do, in lines for people.
func (s *Summary) Explain() []string {
	ended, missed := s.Total()
	last := formatPeriod(s.Last)
	switch {
	case ended == 0:
		return []string{fmt.Sprintf("no query has ended in the last %s", last)}
	case ended == 1 && missed == 0:
		return []string{fmt.Sprintf("the one query of the last %s was answered in time", last)}
	case missed == 0:
		return []string{
			fmt.Sprintf("all %s of the last %s were answered in time", countQueries(ended), last),
		}
	}
	lines := []string{
		s.Sentence(3),
		fmt.Sprintf("(%d of %s of the last %s %s late, refused or failed)", missed,
			countQueries(ended), last, were(missed)),
	}
	const most = 5
	for i, c := range s.Causes() {
		if i == most || i > 0 && c.Count*50 < missed {
			break
		}
		lines = append(lines, "", fmt.Sprintf("%d. %s: %s", i+1, c.Cause.Short(c.Agent),
			countQueries(c.Count)))
		if evidence := c.Cause.Evidence(c.Mean()); evidence != "" {
			lines = append(lines, "   measured: "+evidence)
		}
		lines = append(lines, "   do: "+c.Cause.Remedy(c.Agent))
	}
	return lines
}

func countQueries(n uint64) string {
	if n == 1 {
		return "1 query"
	}
	return fmt.Sprintf("%d queries", n)
}

func were(n uint64) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// formatPeriod formats a time that people have chosen: "10m", "90s".
func formatPeriod(d time.Duration) string {
	if d >= time.Minute && d%time.Minute == 0 {
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", int(d.Seconds()))
}

// A Report is a summary as programs read it: `muster why --json` and the dashboard.
type Report struct {
	LastSeconds float64       `json:"last_seconds"`
	Ended       uint64        `json:"queries"`
	Missed      uint64        `json:"late"`
	Sentence    string        `json:"sentence"`
	Causes      []CauseReport `json:"causes"` // the most frequent first
}

// A CauseReport is a cause in a [Report].
type CauseReport struct {
	Cause    string  `json:"cause"`
	Agent    string  `json:"agent,omitempty"`
	Queries  uint64  `json:"queries"`
	MeanMs   float64 `json:"mean_ms,omitempty"`
	Short    string  `json:"short"`
	Evidence string  `json:"evidence,omitempty"`
	Remedy   string  `json:"remedy"`
}

// Report returns the summary as a report.
func (s *Summary) Report() Report {
	r := Report{LastSeconds: s.Last.Seconds(), Sentence: s.Sentence(3), Causes: []CauseReport{}}
	r.Ended, r.Missed = s.Total()
	for _, c := range s.Causes() {
		r.Causes = append(r.Causes, CauseReport{
			Cause: string(c.Cause), Agent: c.Agent, Queries: c.Count,
			MeanMs: float64(c.Mean()) / float64(time.Millisecond), Short: c.Cause.Short(c.Agent),
			Evidence: c.Cause.Evidence(c.Mean()), Remedy: c.Cause.Remedy(c.Agent),
		})
	}
	return r
}
