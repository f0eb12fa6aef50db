package fleet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

var seedFlag = flag.Uint64("seed", 0, "the one seed to run; 0: as many as a test wants")

// flat is a latency that is the same for all batch sizes.
type flat time.Duration

func (d flat) Mean(int) time.Duration              { return time.Duration(d) }
func (d flat) Quantile(float64, int) time.Duration { return time.Duration(d) }

// steep is a latency for each row.
type steep time.Duration

func (d steep) Mean(batch int) time.Duration {
	return time.Duration(batch) * time.Duration(d)
}
func (d steep) Quantile(_ float64, batch int) time.Duration { return d.Mean(batch) }

const ms = time.Millisecond

// A referee watches a fleet, to which anything may happen for a while, and then nothing.
type referee struct {
	f      *Fleet
	cfg    Config
	rng    *rand.Rand
	mutant *mutant
	fault  error // the first broken promise

	queries   int
	cancels   bool // clients cancel queries
	cancelled int
	outcomes  map[uint64]Outcome
	calls     map[*call]bool // those seen; false: cut off, or over
	answered  map[*call]bool
	rows      map[uint64]int // of queries
	greeted   map[*agent]greeting
	submitted map[submission]bool
	check     func() // after the deed
}

// A greeting is what a lane held when its agent greeted a leader.
type greeting struct {
	to    *term
	holds []*call
}

// A submission is of a query to a leader.
type submission struct {
	to                *term
	gateway, sequence uint64
}

func (r *referee) failf(format string, args ...any) {
	if r.fault == nil {
		r.fault = fmt.Errorf("at %v: "+format, append([]any{r.f.now}, args...)...)
	}
}

// newReferee returns one of a fleet that follows from the seed.
func newReferee(t testing.TB, seed uint64, m *mutant) *referee {
	rng := rand.New(rand.NewPCG(seed, 0))
	r := &referee{
		rng: rng, mutant: m, outcomes: map[uint64]Outcome{}, calls: map[*call]bool{},
		answered: map[*call]bool{}, rows: map[uint64]int{},
		greeted: map[*agent]greeting{}, submitted: map[submission]bool{},
	}
	mean := []time.Duration{20 * ms, 100 * ms}[rng.IntN(2)]
	n := []int{1, 2, 4}[rng.IntN(3)]
	// In some fleets no agent may lead; in some there are many models, each on three of the lanes.
	leaderless, many := seed%7 == 3 && m == nil, seed%4 == 1 && n == 4 && m == nil
	r.cancels = seed%5 == 2 && m == nil
	// In some fleets only the first agent answers large queries in time, and others their parts.
	types := make([]names.LaneType, n)
	latency := map[names.LaneType]match.Latencies{"box": flat(mean)}
	splits := n == 4 && seed%2 == 0
	for i := range types {
		types[i] = "box"
	}
	if splits {
		types[0] = "big"
		latency["box"], latency["big"] = steep(mean/3), steep(mean/9)
	}
	r.cfg = Config{
		Models: []Model{
			{Model: match.Model{
				Name: "m", QoSTarget: 3 * mean, LargestBatchSize: 10, Splits: splits,
			}, Share: 0.99},
		},
		Seed: seed, RTT: []time.Duration{0, ms, 5 * ms}[rng.IntN(3)], Gateways: 1 + rng.IntN(2),
		GossipDelay: time.Second, Probes: inquire.DefaultProbes,
		Service: func(lane int, q *ArrivingQuery) time.Duration {
			mean := latency[types[lane]].Mean(q.BatchSize)
			return mean/2 + time.Duration(rng.Int64N(int64(mean)))
		},
		Waits:  func(uint64, bool) {},
		Split:  func(uint64) {},
		Finish: r.finish,
	}
	mostKilled := n - 1
	if leaderless {
		r.cfg.Candidates = -1
	}
	if many {
		mostKilled = 1
		for k := 1; k < 24; k++ {
			other := r.cfg.Models[0]
			other.Name = names.ModelKey(fmt.Sprint("m", k))
			other.QoSTarget *= time.Duration(1 + k%3)
			r.cfg.Models = append(r.cfg.Models, other)
		}
	}
	r.cfg.Faults = randomFaults(rng, types, mostKilled)
	for i, typ := range types {
		table, err := match.NewTable(latency[typ], 40)
		if err != nil {
			t.Fatal(err)
		}
		l := LaneConfig{Type: typ}
		for k := range r.cfg.Models {
			if many && k%n == i {
				l.Known, l.Predicted = append(l.Known, nil), append(l.Predicted, nil)
				continue
			}
			l.Known, l.Predicted = append(l.Known, latency[typ]), append(l.Predicted, table)
		}
		r.cfg.Lanes = append(r.cfg.Lanes, l)
	}
	if seed%3 == 0 && !many {
		r.cfg.Models[0].Merge = names.MergeDeadline
		for i := range r.cfg.Lanes {
			l := &r.cfg.Lanes[i]
			l.Kinds = []*merge.Kind{{Policy: names.MergeDeadline, Latency: l.Predicted[0],
				Largest: 40}}
		}
	}
	var err error
	if r.f, err = New(&r.cfg); err != nil {
		t.Fatal(err)
	}
	r.f.seen = r.seen
	return r
}

// randomFaults are some of the first second, after which all goes well. No more agents are killed
// than mostKilled.
func randomFaults(rng *rand.Rand, types []names.LaneType, mostKilled int) (all []Fault) {
	agents, victims := len(types), []names.AgentName{}
	for i, typ := range types {
		n := i + 1
		if typ == "box" && types[0] != "box" {
			n = i // numbers count by type
		}
		victims = append(victims, agentName(typ, n))
	}
	killed := 0
	for range 1 + rng.IntN(4) {
		f := Fault{
			Verb: []string{kill, freeze, cut, slow, drain, deafen, mute}[rng.IntN(7)],
			Target: []names.AgentName{
				TheLeader, victims[rng.IntN(agents)],
			}[rng.IntN(2)],
			At:       time.Duration(rng.IntN(1000)) * ms,
			Duration: time.Duration(1+rng.IntN(1500)) * ms,
		}
		if f.Verb == deafen && agents == 1 {
			f.Verb = cut // it would give its lane each query four times in vain, and then give up
		}
		switch f.Verb {
		case kill:
			if killed++; killed > mostKilled {
				continue
			}
			f.Duration = 0
		case cut, deafen, mute:
			// some break connections, and outlast gossip's patience
			f.Duration *= time.Duration(1 + 3*rng.IntN(2))
		case slow:
			f.Amount = time.Duration(1+rng.IntN(60)) * ms
			f.Duration = 1 + f.Duration/4
		}
		all = append(all, f)
	}
	return all
}

// run lets queries arrive, and everything that follows happen.
func (r *referee) run() {
	// The last fault ends before 7 s.
	const arrivals, storm, end = 3 * time.Second, 1500 * ms, 10 * time.Second
	// half of what the lanes serve, or more if the first one is to be busy
	gap := 2 * r.cfg.Models[0].QoSTarget / 3 / time.Duration(len(r.cfg.Lanes))
	switch m := &r.cfg.Models[0]; {
	case m.Splits:
		gap = gap * 3 / 5
	case m.Merge.Merges(): // more than the lanes serve one by one
		gap = gap * 2 / 5
	}
	for at := time.Duration(0); at < arrivals; at += gap/2 +
		time.Duration(r.rng.Int64N(int64(gap)*2)) {
		r.until(at)
		r.queries++
		q := ArrivingQuery{Sequence: uint64(r.queries), BatchSize: 1 + r.rng.IntN(10), Arrival: at}
		if n := len(r.cfg.Models); n > 1 {
			q.Model = r.rng.IntN(n)
		}
		if r.cancels && at < storm { // some by themselves, all others at once
			if q.CancelAfter = storm - at; r.rng.IntN(4) == 0 {
				q.CancelAfter = 1 + time.Duration(r.rng.Int64N(int64(q.CancelAfter)))
			}
		}
		r.rows[q.Sequence] = q.BatchSize
		r.f.Arrive(q)
		r.look()
	}
	r.until(end)
	if len(r.outcomes) != r.queries {
		r.failf("%d of %d queries have an outcome", len(r.outcomes), r.queries)
	}
	for _, a := range r.f.agents {
		kept := slices.ContainsFunc(a.promises, func(p promise) bool {
			return a.lanes.HasReserved(p.of, r.f.now)
		})
		if !a.dead && len(a.held) > 0 || kept {
			r.failf("in the end %s holds %d attempts, and keeps its lane for gateways: %v",
				a.member.Name, len(a.held), kept)
		}
	}
	leads := r.f.currentLeader()
	if r.cfg.Candidates < 0 {
		if leads != nil {
			r.failf("%s leads, and must not", leads.member.Name)
		}
		return
	}
	if leads == nil {
		r.failf("nobody leads")
		return
	}
	sizes := leads.term.state.Sizes()
	if sizes["waiting"]+sizes["reserved"]+sizes["queries"]+sizes["parked"] > 0 {
		r.failf("in the end the leader knows %v, want no query", sizes)
	}
	for _, g := range r.f.gateways {
		if name, led := g.state.Linked(); name != leads.member.Name || !led {
			r.failf("in the end a gateway has the leader %q, answering %v, want %q", name, led,
				leads.member.Name)
		}
	}
}

// until lets happen what happens up to the time.
func (r *referee) until(at time.Duration) {
	for r.fault == nil && r.f.err == nil && r.f.nextAt() <= at {
		if r.mutant != nil && r.mutant.before != nil {
			r.mutant.before(r.f)
		}
		r.f.next()
		r.look()
	}
	if r.f.err != nil {
		r.failf("%v", r.f.err)
	}
	r.f.now = max(r.f.now, at)
}

// look checks what must hold after each deed.
func (r *referee) look() {
	if r.check != nil {
		r.check()
		r.check = nil
	}
	for _, a := range r.f.agents {
		if a.link != nil && a.link != r.greeted[a].to {
			r.greeted[a] = greeting{a.link, slices.Clone(a.held)}
		}
	}
	for c, live := range r.calls {
		if c.of.by == c && !r.answered[c] {
			if r.answered[c] = true; !live {
				r.failf("query %d is answered by an attempt that its gateway had given up",
					c.of.Sequence)
			}
		}
		if live && !slices.Contains(c.gateway.calls, c) {
			r.calls[c] = false
		}
	}
	for _, g := range r.f.gateways {
		for _, c := range g.calls {
			if _, known := r.calls[c]; !known {
				r.calls[c] = true
			}
		}
		if g.link == nil {
			continue
		}
		if a := g.link.agent; a.isFrozen() && !a.dead && max(a.cuts[into].until,
			a.cuts[outOf].until) <= a.froze {
			const least = time.Second + 70*ms // what it said before may be under way
			if r.f.now-a.froze > least {
				r.failf("gateway %d has the leader %s, which has said nothing for %v", g.id,
					a.member.Name, r.f.now-a.froze)
			}
		}
	}
}

// seen sees what leaders are told.
func (r *referee) seen(t *term, e *leader.Event) {
	if r.mutant != nil && r.mutant.seen != nil {
		r.mutant.seen(e)
	}
	s := submission{t, e.Gateway, e.Sequence}
	switch e.Kind {
	case leader.Submitted:
		r.submitted[s] = true
	case leader.Cancelled, leader.Unused:
		whole := s // of which it may be a part: the leader has split it
		whole.sequence = match.QueryID{Sequence: s.sequence}.Whole().Sequence
		if !r.submitted[s] && !r.submitted[whole] {
			r.failf(
				"%s is told that query %d/%d is cancelled, or not used, before that is submitted",
				t.agent.member.Name, s.gateway, s.sequence)
		}
	case leader.Greeted:
		a := t.f.named[e.Agent]
		r.check = func() {
			for _, c := range r.greeted[a].holds {
				if r.greeted[a].to == t && !c.over && !r.knows(t, c) {
					r.failf("%s has greeted, and %s does not know that it holds query %d/%d",
						e.Agent, t.agent.member.Name, c.gateway.id, c.of.state.Sequence)
				}
			}
		}
	}
}

// knows reports whether a leader knows that a lane has a call.
func (r *referee) knows(t *term, c *call) bool {
	return slices.ContainsFunc(t.state.Holds(c.to.member.Name, 0), func(h leader.Held) bool {
		return h.Gateway == c.gateway.id && h.Sequence == c.of.state.Sequence &&
			h.Attempt == c.number
	})
}

// finish takes the outcome of a query.
func (r *referee) finish(sequence uint64, o Outcome, _ Answer) {
	if was, twice := r.outcomes[sequence]; twice {
		r.failf("query %d has the outcome %d, and had %d", sequence, o, was)
	}
	r.outcomes[sequence] = o
	if o == Cancelled && r.cancels {
		r.cancelled++
		return
	}
	if o != Served {
		r.failf("query %d has the outcome %d, want it to be served", sequence, o)
		return
	}
	rows, parts := 0, 0
	for c := range r.calls {
		if c.of.Sequence == sequence && c.of.by == c && c.of.whole != nil {
			rows, parts = rows+c.of.BatchSize, parts+1
		}
	}
	if parts > 0 && rows != r.rows[sequence] {
		r.failf("query %d of %d rows is answered by %d parts of %d rows", sequence,
			r.rows[sequence],
			parts, rows)
	}
}

// schedule runs a random schedule, and returns how many queries were split, how many ran together
// with another, and the first broken promise.
func schedule(t testing.TB, seed uint64, m *mutant) (splits, joined uint64, err error) {
	r := newReferee(t, seed, m)
	r.run()
	for _, g := range r.f.gateways {
		splits += g.state.Stats().Splits
	}
	for _, a := range r.f.agents {
		joined += uint64(a.lane.Served - a.runs)
	}
	if r.fault != nil {
		err = fmt.Errorf("%w (%v)", r.fault, r.cfg.Faults)
	}
	return splits, joined, err
}

// TestSchedules: whatever goes wrong for a while, each query is served once, by the attempt that
// counts; a leader knows from a greeting what the lane holds, and of a query before it is
// cancelled; no gateway keeps a leader that says nothing; and in the end nobody remembers anything.
func TestSchedules(t *testing.T) {
	if *seedFlag != 0 {
		if _, _, err := schedule(t, *seedFlag, nil); err != nil {
			t.Error(err)
		}
		return
	}
	n := uint64(150)
	if testing.Short() {
		n = 40
	}
	splits, joined := uint64(0), uint64(0)
	for seed := uint64(1); seed <= n; seed++ {
		split, with, err := schedule(t, seed, nil)
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		splits, joined = splits+split, joined+with
	}
	t.Logf("%d queries were split, %d ran with another", splits, joined)
	if splits < n || joined < n {
		t.Errorf("%d queries were split and %d ran with another, want more to look at", splits,
			joined)
	}
}

// A mutant is a fleet with a bug, made by tampering with it.
type mutant struct {
	name, caught string                // caught: what the fault must say
	before       func(f *Fleet)        // each deed
	seen         func(e *leader.Event) // what leaders are told
}

var mutants = []*mutant{
	{
		name: "greets without what its lane holds", caught: "does not know that it holds",
		seen: func(e *leader.Event) {
			if e.Kind == leader.Greeted {
				e.Holds = nil
			}
		},
	},
	{
		name: "takes the answer of an attempt that it has cut off", caught: "had given up",
		before: func(f *Fleet) {
			for _, a := range f.agents {
				for _, c := range a.held {
					q, g := c.of, c.gateway
					if n := len(q.calls); n > 0 && !slices.Contains(q.calls, c) {
						g.calls[slices.Index(g.calls, q.calls[n-1])] = c
						q.calls[n-1] = c
					}
				}
			}
		},
	},
	{
		name: "takes a query for answered when one of its parts is", caught: "parts of",
		before: func(f *Fleet) {
			for _, g := range f.gateways {
				for _, c := range g.calls {
					if whole := c.of.whole; whole != nil && whole.by != nil && !whole.done {
						g.state.End(&whole.state, nil)
						g.carryOutActions()
						return
					}
				}
			}
		},
	},
	{
		name: "keeps a leader that says nothing", caught: "has said nothing",
		before: func(f *Fleet) {
			for _, g := range f.gateways {
				g.state.HandleLeaderMessage(0, f.now)
			}
		},
	},
	{
		name: "brings messages in any order", caught: "before that is submitted",
		before: func(f *Fleet) { clear(f.lastAt) },
	},
}

// TestMutants checks that the schedules find the bugs they are there to find.
func TestMutants(t *testing.T) {
	const most = 300
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			others := 0
			for seed := uint64(1); seed <= most; seed++ {
				_, _, err := schedule(t, seed, m)
				if err != nil && strings.Contains(err.Error(), m.caught) {
					t.Logf("seed %d, after %d of other faults: %v", seed, others, err)
					return
				}
				if err != nil {
					others++
				}
			}
			t.Errorf("%d schedules do not find a fleet that %s", most, m.name)
		})
	}
}
