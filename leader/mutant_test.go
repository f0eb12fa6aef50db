package leader

import (
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/leader/match"
)

// A mutant is a leader with a bug, made by tampering with what it is told and what it says.
type mutant struct {
	name   string
	caught string                               // what the fault must say
	before func(w *world, e *Event) (told bool) // false: the state is not stepped
	after  func(w *world, actions []Action) []Action
}

var mutants = []*mutant{
	{
		name: "loses a completion", caught: "the leader believes",
		before: func(_ *world, e *Event) bool { return e.Kind != Completed || e.Sequence%16 != 0 },
	},
	{
		name: "does not free a lane", caught: "the leader believes",
		before: func(_ *world, e *Event) bool {
			if e.Kind == Completed && e.Sequence%16 == 0 {
				e.Attempt++
			}
			return true
		},
	},
	{
		name: "takes an answer for another's", caught: "has no outcome",
		before: func(w *world, e *Event) bool {
			if e.Kind == Completed && !e.Refused {
				for _, q := range w.queries {
					if g := w.state.gateways[q.g.id]; q.outcome == "" && g != nil &&
						g.queries[q.sequence] != nil {
						g.removeQuery(q.sequence)
						w.state.step(cancelOf(q))
						break
					}
				}
			}
			return true
		},
	},
	{
		name: "gives a query to two lanes", caught: "of which the leader does not know",
		after: func(w *world, actions []Action) []Action {
			for i, a := range actions {
				if other := w.members[0].member.Name; a.Kind == Assign && a.Agent != other &&
					a.Decision.Query.Sequence%3 == 0 && !w.members[0].dead {
					again := a
					again.Agent, again.Lane = other, 0
					again.Decision.Attempt++
					return slices.Insert(slices.Clone(actions), i+1, again)
				}
			}
			return actions
		},
	},
	{
		name: "loses rows of a split", caught: "is split into",
		after: func(_ *world, actions []Action) []Action {
			actions = slices.Clone(actions)
			for i, a := range actions {
				if a.Kind == Split {
					actions[i].Decision.Rows = slices.Clone(a.Decision.Rows)
					actions[i].Decision.Rows[0]--
				}
			}
			return actions
		},
	},
	{
		name: "offers a part again twice", caught: "is offered again twice",
		after: func(_ *world, actions []Action) []Action {
			for i, a := range actions {
				if a.Kind == OfferAgain && a.Decision.Query.IsPart() {
					return slices.Insert(slices.Clone(actions), i+1, a)
				}
			}
			return actions
		},
	},
	{
		name: "leaves a part of what is cancelled", caught: "the leader knows",
		before: func(w *world, e *Event) bool {
			if q := w.find(e.Gateway, e.Sequence); e.Kind == Cancelled && q != nil &&
				len(q.parts) > 0 {
				e.Sequence = q.parts[0].sequence
			}
			return true
		},
	},
	{
		name: "loses a cancel", caught: "the leader was told",
		before: func(_ *world, e *Event) bool { return e.Kind != Cancelled },
	},
	{
		name: "does not look at what lanes have", caught: "runs twice",
		before: func(_ *world, e *Event) bool {
			if e.Kind == Greeted {
				e.Holds = nil
			}
			return true
		},
	},
	{
		name: "does not look at where a query is", caught: "runs twice",
		before: func(_ *world, e *Event) bool {
			if e.Kind == Submitted {
				e.Agent = ""
			}
			return true
		},
	},
	{
		name: "takes no query a second time", caught: "has no outcome",
		before: func(_ *world, e *Event) bool { return e.Kind != Submitted || e.Attempt == 0 },
	},
	{
		name: "keeps the lanes of the dead", caught: "lanes",
		before: func(w *world, e *Event) bool {
			if e.Kind == ViewChanged {
				e.Members = nil
				for _, m := range w.members {
					e.Members = append(e.Members, m.member)
				}
			}
			return e.Kind != LinkBroken
		},
	},
	{
		name: "loses an assignment", caught: "none of its lanes was lost",
		after: func(_ *world, actions []Action) []Action {
			return slices.DeleteFunc(slices.Clone(actions),
				func(a Action) bool { return a.Kind == Assign && a.Decision.Query.Sequence%5 == 0 })
		},
	},
	{
		name: "ignores what is given back", caught: "the leader believes",
		before: func(_ *world, e *Event) bool { return e.Kind != Unused },
	},
	{
		name: "frees a lane before it answers", caught: "of which the leader does not know",
		after: func(w *world, actions []Action) []Action {
			for _, a := range actions {
				if a.Kind == Assign && a.Decision.Query.Sequence%3 == 0 {
					actions = slices.Clone(actions)
					w.state.Step(w.now-w.began, &Event{
						Kind: Cancelled, Gateway: a.Decision.Query.Gateway,
						Sequence: a.Decision.Query.Sequence,
					})
					w.state.Step(w.now-w.began,
						&Event{Kind: Unused, Gateway: a.Decision.Query.Gateway,
							Sequence: a.Decision.Query.Sequence,
							Attempt:  a.Decision.Attempt, Agent: a.Agent, Lane: a.Lane})
					break
				}
			}
			return actions
		},
	},
}

// TestMutants checks that the schedules find the bugs they are there to find.
func TestMutants(t *testing.T) {
	const most = 2000
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			others := 0
			for seed := uint64(1); seed <= most; seed++ {
				err := runSchedule(seed, m, nil)
				if err != nil && strings.Contains(err.Error(), m.caught) {
					t.Logf("seed %d, after %d of other faults: %v", seed, others, err)
					return
				}
				if err != nil {
					others++
				}
			}
			t.Errorf("%d schedules do not find a leader that %s", most, m.name)
		})
	}
}

func cancelOf(q *testQuery) match.Event {
	return match.Event{
		Kind: match.Cancelled, Query: match.QueryID{Gateway: q.g.id, Sequence: q.sequence},
	}
}
