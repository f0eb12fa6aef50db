package fleet

import (
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// profileKey is the key under which agents of a type learn a model's latency.
func profileKey(model *Model, laneType names.LaneType) profiles.Key {
	return profiles.Key{
		Model: string(model.Name), Version: 1, InstanceType: profiles.InstanceType(laneType),
		Provider: "cpu",
	}
}

// priorBook is what a leader that learns knows at first.
func (f *Fleet) priorBook() *profiles.Book {
	book := profiles.NewBook(nil)
	for i := range f.cfg.Lanes {
		lane := &f.cfg.Lanes[i]
		for m, table := range lane.Predicted {
			if f.cfg.Prior == nil || table == nil {
				continue
			}
			key := profileKey(&f.cfg.Models[m], lane.Type)
			if book.FindLearner(key) != nil {
				continue
			}
			if prior := f.cfg.Prior(m, lane.Type); prior != nil {
				book.Begin(key, prior.As(key))
			}
		}
	}
	return book
}

// tellLatencies tells gateways and lanes what the leader has learned, and keeps it for the next
// leader.
func (t *term) tellLatencies(all []*leader.Latency) {
	f := t.f
	for _, l := range all {
		f.told[l.TableKey] = *l
		if m := f.modelOf(l.Model); m >= 0 {
			f.laws[m] = l.Law
		}
	}
	for _, g := range f.gateways {
		t.callGateway(g, func() {
			for _, l := range all {
				if m := f.modelOf(l.Model); m >= 0 {
					if err := g.known.SetProfile(f.cfg.Models[m].Name, l.Type,
						l.Table); err != nil {
						f.fail(err)
					}
				}
			}
		})
	}
	for _, b := range f.agents {
		f.send(&t.agent.endpoint, &b.endpoint, func() {
			for _, l := range all {
				if m := f.modelOf(l.Model); m >= 0 && l.Profile != nil &&
					b.lane.Predicted[m] != nil &&
					(l.Type == b.member.Type || l.Type == b.member.OwnType) {
					b.lane.setKnown(m, l.Table, l.Profile)
				}
			}
		}, nil)
	}
}

// modelOf is the index of the model that leaders know by a key, -1 if there is none.
func (f *Fleet) modelOf(key names.ModelKey) int {
	return slices.IndexFunc(f.cfg.Models, func(m Model) bool { return m.leaderID().Key() == key })
}

// setKnown sets the known latency of a model on the lane.
func (l *LaneConfig) setKnown(model int, table *match.LatencyTable, known match.Latencies) {
	l.Predicted[model], l.Known[model] = table, known
	if model < len(l.Kinds) && l.Kinds[model] != nil {
		l.Kinds[model].Latency, l.Kinds[model].Largest = table, table.Largest()
	}
}
