package leader

import (
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Glance is the part of a state that is shown each second. It costs much less than a [Status], so
// it is made whether somebody looks or not.
type Glance struct {
	Waiting, WaitingLate int
	Rate                 float64 // queries/s that arrive, as in Status
	Limit                float64 // the fluid limit, queries/s; 0: unknown
	Within               float64 // over all models, as in ModelStatus; it counts if Any
	Any                  bool
	Models               []ModelGlance // in no order
	Lanes                []LaneGlance  // in no order
	// Factors are the agents', as in AgentStatus. The caller must not change them.
	Factors map[names.AgentName]float64
}

// A ModelGlance is a version of a model. Answered, Late and Failed count since the term began.
type ModelGlance struct {
	ModelID
	Rate, Within           float64 // as in ModelStatus
	Any                    bool
	Answered, Late, Failed uint64
}

// A LaneGlance is a lane of a member.
type LaneGlance struct {
	Agent    names.AgentName
	Lane     int
	Free     time.Duration  // until it is free
	Runs     names.ModelKey // the model that the lane runs; "": none
	Draining bool
	Overdue  bool // its answer is late; it gets no query until it answers
	Silent   bool // it has been asked what it holds, more than once, and has not answered
}

// Glance fills g with the state as of the last step. It reuses g's slices.
func (s *State) Glance(g *Glance) {
	*g = Glance{Models: g.Models[:0], Lanes: g.Lanes[:0], Limit: s.limit, Factors: s.factors}
	g.Waiting, g.WaitingLate = s.matcher.Waiting()
	span := min(max(s.now, time.Second), rateSeconds*time.Second)
	g.Rate = s.ended.sumOver(s.now, span) / span.Seconds()
	var minute tally
	for _, m := range s.models {
		if s.onDisk[m.ModelID] && !s.loadable[m.ModelID] && m.total == (tally{}) {
			continue // no lane has held it
		}
		status := m.statusAt(s.now)
		g.Models = append(g.Models, ModelGlance{
			ModelID: m.ModelID, Rate: status.Rate, Within: status.Within, Any: status.Any,
			Answered: m.total.answered, Late: m.total.late, Failed: m.total.lost + m.total.excused,
		})
		last := m.lastSeconds(s.now, StatusSeconds)
		minute.answered += last.answered
		minute.late += last.late
		minute.lost += last.lost
	}
	if n := minute.answered + minute.lost; n > 0 {
		g.Within, g.Any = float64(minute.answered-minute.late)/float64(n), true
	}
	for id, ln := range s.lanes {
		look, ok := s.matcher.Look(id)
		if !ok {
			continue
		}
		g.Lanes = append(g.Lanes, LaneGlance{
			Agent: ln.agent, Lane: ln.index, Free: look.Free, Runs: look.Runs,
			Draining: look.Draining, Overdue: look.Overdue,
			Silent: look.Asked > 1,
		})
	}
}
