package replan

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// A mutant is a replanner with a bug, made by tampering with what it is told and what it answers.
type mutant struct {
	name   string
	caught string // what the fault must say
	before func(w *world, s *Snapshot)
	after  func(w *world, a *Answer)
}

var mutants = []*mutant{
	{
		name: "sends all at once", caught: "are away",
		after: func(w *world, a *Answer) {
			for _, x := range a.Waits {
				if !strings.Contains(x.Why, "last host") && !strings.Contains(x.Why, "paused") {
					w.r.start(w.r.takeCensus(), &host{agent: w.r.agents[x.Agent]})
					a.Moves = append(a.Moves, w.r.agents[x.Agent].sent)
				}
			}
		},
	},
	{
		name: "takes the last host", caught: "the last host of family",
		after: func(w *world, a *Answer) {
			for _, x := range a.Waits {
				if strings.Contains(x.Why, "last host") {
					w.r.start(w.r.takeCensus(), &host{agent: w.r.agents[x.Agent]})
					a.Moves = append(a.Moves, w.r.agents[x.Agent].sent)
				}
			}
		},
	},
	{
		name: "forgets to drain first", caught: "bytes of models",
		after: func(_ *world, a *Answer) {
			for i := range a.Moves {
				a.Moves[i].DrainFirst = false
			}
		},
	},
	{
		name: "does not know the memory", caught: "does not fit",
		before: func(_ *world, s *Snapshot) {
			for i := range s.Agents {
				s.Agents[i].Memory = 0
			}
		},
	},
	{
		name: "does not look at the disk", caught: "not on its disk",
		before: func(w *world, s *Snapshot) {
			var all []names.ModelKey
			for _, v := range w.variants {
				all = append(all, v.Model)
			}
			for i := range s.Agents {
				s.Agents[i].Available = all
			}
		},
	},
	{
		name: "asks again for what failed", caught: "whose load has failed there",
		after: func(w *world, _ *Answer) { clear(w.r.barred) },
	},
	{
		name: "asks those that are fixed", caught: "which is fixed",
		before: func(_ *world, s *Snapshot) {
			for i := range s.Agents {
				s.Agents[i].Fixed = false
			}
		},
	},
	{
		name: "sends an older version again", caught: "is asked for",
		after: func(w *world, a *Answer) {
			for i, m := range a.Moves {
				for v := m.Stamp.Version - 1; v > 0; v-- {
					if old, ok := w.history[v][m.Agent]; ok && old != m.Layout.String() {
						a.Moves[i].Layout, _ = place.ParseLayout(old)
						return
					}
				}
			}
		},
	},
	{
		name: "goes back in versions", caught: "comes after",
		after: func(w *world, a *Answer) {
			if a.Placement.Version > 2 {
				p := *a.Placement
				p.Version -= 2
				a.Placement = &p
			}
		},
	},
	{
		name: "changes a version", caught: " wants ",
		after: func(w *world, a *Answer) {
			if a.Changed && len(w.r.wanted) > 0 && w.version > 1 {
				p := *a.Placement
				p.Version--
				a.Placement = &p
			}
		},
	},
	{
		name: "never resends what was lost", caught: "not there",
		after: func(w *world, a *Answer) {
			for i := len(a.Moves) - 1; i >= 0; i-- {
				if at := w.r.agents[a.Moves[i].Agent].sentAt; !at.Equal(w.now) {
					a.Moves = append(a.Moves[:i], a.Moves[i+1:]...)
				}
			}
		},
	},
	{
		name: "forgets failures", caught: "not there",
		before: func(_ *world, s *Snapshot) {
			for i := range s.Agents {
				if s.Agents[i].State == Failed {
					s.Agents[i].State = Changing
				}
			}
		},
	},
}

// TestMutants: the schedules and their checker find each of these bugs.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		var found string
		for seed := uint64(0); seed < 400 && !strings.Contains(found, m.caught); seed++ {
			found = schedule(seed, m).fault
		}
		if !strings.Contains(found, m.caught) {
			t.Errorf("a replanner that %s: found %q, want a fault with %q", m.name, found, m.caught)
		}
	}
}
