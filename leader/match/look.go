package match

import (
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A LaneLook is what a lane does, as the matcher knows it, for people to look at.
type LaneLook struct {
	Free     time.Duration  // until the lane is free, as of the last step
	Runs     names.ModelKey // the model of the oldest attempt that it holds; "": it holds none
	Draining bool
	Overdue  bool
	Asked    int // as [Matcher.Load] has it
}

// Look returns what a lane does; ok is false if there is no such lane.
func (m *Matcher) Look(id LaneID) (look LaneLook, ok bool) {
	l := m.lanes[id]
	if l == nil {
		return look, false
	}
	look = LaneLook{
		Free: fromMs(max(0, l.freeAt-m.now)), Draining: l.draining, Overdue: l.overdue,
		Asked: l.asked,
	}
	if len(l.held) > 0 {
		if q := m.queries[l.held[0].query]; q != nil && q.model >= 0 {
			look.Runs = m.models[q.model].Name
		}
	}
	return look, true
}
