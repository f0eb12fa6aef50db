package lead

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/profiles"
)

// A busyReplanner asks for one problem to be solved, which takes until goOn is closed, as on a
// machine that has nothing to spare for what runs at a low priority.
type busyReplanner struct {
	asked, solving atomic.Bool
	goOn           chan struct{}
}

// Mean implements [replan.Latencies].
func (r *busyReplanner) Mean(batch int) time.Duration {
	if r.asked.Load() {
		r.solving.Store(true)
		<-r.goOn
	}
	return linear(batch)
}

func (r *busyReplanner) Step(now time.Time, _ *replan.Snapshot) *replan.Answer {
	answer := &replan.Answer{Next: now.Add(time.Second)}
	if r.asked.Load() {
		return answer
	}
	asks, err := replan.New(replan.Config{Epoch: 1, Settle: 1}, replan.Memory{})
	if err != nil {
		panic(err)
	}
	s := &replan.Snapshot{Latencies: map[names.TableKey]replan.Latencies{}}
	for _, model := range []string{"m", "n"} {
		key := names.NewModelKey(model, 1)
		s.Variants = append(s.Variants, replan.Variant{Model: key, Family: model, Largest: 100})
		s.Families = append(s.Families, replan.Family{
			Name: model, QoSTarget: time.Second,
			Sizes: profiles.Distribution{{BatchSize: 1, Share: 1}},
		})
		s.Latencies[names.TableKey{Model: key, Type: "box"}] = r
	}
	s.Agents = []replan.Agent{{
		Name: "x", Type: "box", Lanes: 1, Cores: 1, Available: []names.ModelKey{"m/1", "n/1"},
		Held: place.NewLayout("m/1"),
	}}
	for range 100 {
		now = now.Add(time.Second)
		for i := range s.Families {
			s.Families[i].Arrived += 10
		}
		if answer.Solve = asks.Step(now, s).Solve; answer.Solve != nil {
			break
		}
	}
	r.asked.Store(true)
	return answer
}

func (r *busyReplanner) Solved(*replan.Plan)                       {}
func (r *busyReplanner) Command(replan.Command) error              { return nil }
func (r *busyReplanner) Memory() replan.Memory                     { return replan.Memory{} }
func (r *busyReplanner) Explain(names.AgentName) ([]string, error) { return nil, nil }

// TestLeadAgainWhileSolving: an agent that loses the leadership and has it again leads at once,
// also while the plan of its former term is still being solved.
func TestLeadAgainWhileSolving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &busyReplanner{goOn: make(chan struct{})}
		w := newLeaderWorld(t)
		defer w.stop()
		defer close(r.goOn)
		a := w.add("a", 1, linear, func(c *Config) {
			c.Replanner = func(replan.Config, replan.Memory) (Replanner, error) { return r, nil }
		})
		b := w.add("b", -1, linear)
		follows := func(epoch uint64) bool {
			l := b.leader.Leadership()
			return l.Leader == "a" && l.Epoch >= epoch
		}
		soon(t, 2*time.Second, "b follows a", func() bool { return follows(1) })
		term := a.leader.currentTerm()
		term.callInLoop(func() {
			term.layouts["a"] = &control.LayoutState{Automatic: true}
			term.placing.wake.Send()
		})
		soon(t, 2*time.Second, "a plan is being solved", r.solving.Load)
		a.leader.Elect(&control.Election{ // somebody claims to know of another leader, who has gone
			From: "b", Kind: uint32(election.Refuse), Epoch: 7, Rank: 1, Leader: "gone",
		})
		soon(t, time.Second, "b follows a again", func() bool { return follows(8) })
		g := w.gateway(7)
		defer g.close()
		g.submit(10)
		soon(t, time.Second, "a query is answered", func() bool { return g.open() == 0 })
	})
}
