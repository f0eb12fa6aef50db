package fleet

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

const (
	// warmUp is how long before queries arrive a fleet begins: it elects a leader meanwhile.
	warmUp = 2 * time.Second
	// heartbeats is how far a leader's heartbeats are apart.
	heartbeats = 50 * time.Millisecond
	// persistTime is how long an agent takes to write an epoch to its disk.
	persistTime = time.Millisecond
	// connectionTimeout is after how long a connection breaks that brings nothing through.
	connectionTimeout = 3 * time.Second
	// gossipGivesUp is after how long gossip takes an agent that is not heard for no member any
	// more, gossipReturns how long it takes to notice that one is back.
	gossipGivesUp, gossipReturns = 5 * time.Second, 200 * time.Millisecond
	// redial is how long a leader waits before it opens a broken link again.
	redial = 100 * time.Millisecond
	// keepPlace is how long a lane keeps the place that it has promised.
	keepPlace = 20 * time.Millisecond
	// patience is for how long nothing may happen to any query before those left count as never
	// served.
	patience = 2 * time.Minute
)

// A Fleet is agents with a lane each, which elect a leader among them
// (leader/election); the leader, which is a [leader.State]; gateways, which decide by
// [match.Leaderless] while none answers; and a network between them. All rank alike, so of the
// agents there the last by name leads.
//
// A message takes half a round trip, and its turn among those of the same two hosts. What becomes
// of it when something goes wrong is what becomes of it in a TCP connection.
type Fleet struct {
	cfg       *Config
	now       time.Duration
	err       error
	steps     int           // of leaders
	cost      time.Duration // of them, by Config.Clock
	done      int           // deeds
	open      int           // queries without an outcome
	rng       *rand.Rand
	deeds     deeds
	scheduled uint64
	agents    []*agent
	named     map[names.AgentName]*agent
	gateways  []*gateway
	lastAt    map[[2]*host]time.Duration // when the last message of one host to another arrives
	delays    []delay                    // those that last
	known     *leader.Advice             // what is known of latencies and prices
	ahead     time.Duration              // as the last leader has found it
	terms     []*term                    // all there were
	results   []Result                   // of the faults, by time
	faultAt   time.Duration              // when the last one happened
	movedAt   time.Duration              // when something last happened to a query
	// seen, which may be nil, is for tests: it sees what leaders are told before they do.
	seen func(t *term, e *leader.Event)
}

// A deed is something to be done at a time.
type deed struct {
	at    time.Duration
	order uint64
	do    func()
}

type deeds []deed

func (h deeds) Len() int { return len(h) }
func (h deeds) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h deeds) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *deeds) Push(x any)   { *h = append(*h, x.(deed)) }
func (h *deeds) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = deed{}
	*h = (*h)[:len(*h)-1]
	return last
}

// New returns a fleet that begins [warmUp] before the time 0. The caller lets time pass with Until.
func New(cfg *Config) (*Fleet, error) {
	f := &Fleet{
		cfg: cfg, now: -warmUp, rng: rand.New(rand.NewPCG(cfg.Seed, 14)), ahead: cfg.RTT,
		named: map[names.AgentName]*agent{}, lastAt: map[[2]*host]time.Duration{},
		known: &leader.Advice{Limit: cfg.Limit, Prices: cfg.Prices, Priced: true},
	}
	f.addAgents()
	for i := range cfg.Gateways {
		g, err := newGateway(f, i)
		if err != nil {
			return nil, err
		}
		f.gateways = append(f.gateways, g)
	}
	// So that heartbeats fall differently with each seed.
	begin := f.now + time.Duration(f.rng.Int64N(int64(heartbeats)))
	for _, a := range f.agents {
		if err := a.join(begin); err != nil {
			return nil, err
		}
	}
	for i, fault := range byTime(cfg.Faults) {
		f.results = append(f.results, Result{Fault: fault.String(), at: fault.At})
		f.do(fault.At, func() { f.strike(fault, &f.results[i]) })
	}
	return f, nil
}

// addAgents adds an agent for each lane, and what is known of how long queries run there.
func (f *Fleet) addAgents() {
	number := map[names.LaneType]int{}
	for i := range f.cfg.Lanes {
		l := &f.cfg.Lanes[i]
		number[l.Type]++
		a := &agent{host: newHost(), f: f, index: i, lane: l, wakeAt: Never}
		a.member = &leader.Member{Name: agentName(l.Type, number[l.Type]), Type: l.Type, Lanes: 1}
		a.member.OwnType = l.Type.Own(a.member.Name)
		for m, table := range l.Predicted {
			if table == nil {
				continue
			}
			model := &f.cfg.Models[m]
			a.member.Models = append(a.member.Models, leader.Model{
				ModelID: model.id(), QoSTarget: model.QoSTarget, Share: model.Share,
				Largest: model.LargestBatchSize, RejectLate: model.RejectLate,
			})
			if number[l.Type] == 1 {
				key := names.TableKey{Model: model.id().Key(), Type: l.Type}
				f.known.Latencies = append(f.known.Latencies, &leader.Latency{
					TableKey: key, Table: table,
				})
			}
		}
		f.agents = append(f.agents, a)
		f.named[a.member.Name] = a
	}
}

// Results are what came of the faults, by time.
func (f *Fleet) Results() []Result { return f.results }

// Steps is how often leaders were stepped, and what that cost by [Config.Clock].
func (f *Fleet) Steps() (n int, cost time.Duration) { return f.steps, f.cost }

// Now is the time.
func (f *Fleet) Now() time.Duration { return f.now }

func (f *Fleet) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// Arrive has a query arrive at its gateway now, which is its turn.
func (f *Fleet) Arrive(q Query) {
	f.now = q.Arrival
	f.open++
	f.gateways[q.Sequence%uint64(len(f.gateways))].arrive(q)
}

// do has something done at a time.
func (f *Fleet) do(at time.Duration, what func()) {
	f.scheduled++
	heap.Push(&f.deeds, deed{max(at, f.now), f.scheduled, what})
}

// Until lets happen what happens up to the time. Of [Never] it ends with the last query, unless the
// last fault is not over yet; queries to which nothing happens any more are never served.
func (f *Fleet) Until(ctx context.Context, t time.Duration) error {
	for f.err == nil && len(f.deeds) > 0 && f.deeds[0].at <= t {
		if f.done++; f.done%interruptible == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if t == Never && (f.open == 0 && f.now >= f.faultAt+Window || f.idle()) {
			break
		}
		f.next()
	}
	if t < Never || f.err != nil {
		return f.err
	}
	for _, g := range f.gateways {
		g.state.Close(fate(NeverServed))
		g.carryOut()
	}
	return f.writeRecordings()
}

// next has the next deed done.
func (f *Fleet) next() {
	d := heap.Pop(&f.deeds).(deed)
	f.now = d.at
	d.do()
}

// idle reports that nothing has happened to any query for long, and nothing runs.
func (f *Fleet) idle() bool {
	runs := func(a *agent) bool { return a.running != nil && !a.frozen() }
	return f.now-f.movedAt > patience && !slices.ContainsFunc(f.agents, runs)
}

// writeRecordings hands the recordings of the terms over, one after the other.
func (f *Fleet) writeRecordings() error {
	for _, t := range f.terms {
		if t.rec == nil {
			continue
		}
		if err := t.rec.Flush(); err != nil {
			return err
		}
		if _, err := f.cfg.Record.Write(t.record.Bytes()); err != nil {
			return fmt.Errorf("write recording: %w", err)
		}
	}
	return nil
}
