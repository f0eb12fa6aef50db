package control

import (
	"time"

	"github.com/muster-serve/muster/api/lateness"
)

// ToMissed converts a summary of why queries were late.
func ToMissed(s *lateness.Summary) *MissedQueries {
	m := &MissedQueries{LastNs: int64(s.Last)}
	for i := range s.Missed {
		x := &s.Missed[i]
		m.Missed = append(m.Missed, &Missed{
			Model: x.Model, Cause: string(x.Cause), Agent: x.Agent, Count: x.Count,
			TimeNs: int64(x.Time),
		})
	}
	for model, n := range s.Ended {
		m.Ended = append(m.Ended, &EndedQueries{Model: model, Count: n})
	}
	return m
}

// Summary converts a message to what it says; nil if m is.
func (m *MissedQueries) Summary() *lateness.Summary {
	if m == nil {
		return nil
	}
	s := &lateness.Summary{Last: Duration(m.GetLastNs()), Ended: map[string]uint64{}}
	for _, x := range m.GetMissed() {
		s.Missed = append(s.Missed, lateness.CauseCount{
			Key: lateness.Key{
				Model: x.GetModel(), Cause: lateness.Cause(x.GetCause()), Agent: x.GetAgent(),
			},
			Sum: lateness.Sum{Count: x.GetCount(), Time: time.Duration(x.GetTimeNs())},
		})
	}
	for _, e := range m.GetEnded() {
		s.Ended[e.GetModel()] += e.GetCount()
	}
	return s
}

// Visible returns what of m a client may see, by whether it may see a model; nil if m is.
func (m *MissedQueries) Visible(sees func(model string) bool) *MissedQueries {
	if m == nil {
		return nil
	}
	v := &MissedQueries{LastNs: m.GetLastNs()}
	for _, x := range m.GetMissed() {
		if x.GetModel() != "" && sees(x.GetModel()) {
			v.Missed = append(v.Missed, x)
		}
	}
	for _, e := range m.GetEnded() {
		if e.GetModel() != "" && sees(e.GetModel()) {
			v.Ended = append(v.Ended, e)
		}
	}
	return v
}
