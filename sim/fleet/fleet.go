package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles/work"
)

const (
	// warmUp is how long before the first arrivals a fleet begins, so that it has elected a leader
	// by then.
	warmUp = 2 * time.Second
	// heartbeats is the time between two heartbeats of a leader.
	heartbeats = 50 * time.Millisecond
	// persistTime is how long an agent takes to write an epoch to its disk.
	persistTime = time.Millisecond
	// connectionTimeout is how long nothing may get through a connection before it breaks.
	connectionTimeout = 3 * time.Second
	// gossipGivesUp is how long after an agent was last heard gossip removes it as a member.
	// gossipReturns is how long gossip takes to notice that an agent is back.
	gossipGivesUp, gossipReturns = 5 * time.Second, 200 * time.Millisecond
	// redial is how long a leader waits before it opens a broken link again.
	redial = 100 * time.Millisecond
	// keepPlace is how long a lane keeps a reservation.
	keepPlace = 20 * time.Millisecond
)

// Patience is how long nothing may happen to any query before the queries left count as never
// served.
const Patience = 2 * time.Minute

// A Fleet is a simulated fleet: agents with one lane each, which elect a leader (leader/election);
// the leader's [leader.State]; gateways, which decide by [inquire.State] while no leader
// answers; and the network between them. All agents have the same rank, so the one with the last
// name leads.
//
// A message takes half a round trip, and arrives after earlier messages between the same two hosts.
// Under faults it is delayed or lost as in a TCP connection.
type Fleet struct {
	cfg      *Config
	now      time.Duration
	err      error
	steps    int           // number of leaders' steps
	cost     time.Duration // their time, by Config.Clock
	probes   uint64        // that gateways sent, which have no leader
	done     int           // number of events that have happened
	open     int           // queries without an outcome
	rng      *rand.Rand
	stopped  bool
	calls    []*call         // whose memory is to be used again
	queries  []*gatewayQuery // the same
	events   eventQueue
	spare    []*message // whose memory is to be used again
	calm     bool       // all messages between two hosts take half a round trip
	agents   []*agent
	named    map[names.AgentName]*agent
	indexOf  map[names.ModelKey]int // of models, in Config.Models
	gateways []*gateway
	// when the last message from one host to another arrives
	lastAt    map[[2]*endpoint]time.Duration
	delays    []delay                           // delays in force
	laws      []work.Law                        // by model, of what is known of its latencies
	known     *leader.Advice                    // latencies and prices, known from the start
	told      map[names.TableKey]leader.Latency // those that leaders have learned and told
	ahead     time.Duration                     // State.Ahead of the last leader
	terms     []*term                           // all terms so far
	liveTerms []*term                           // those that are not over
	results   []Result                          // results of the faults, by time
	faultAt   time.Duration                     // when the last fault happened
	movedAt   time.Duration                     // when something last happened to a query
	// seen, which may be nil, is for tests: it is called with each event before the leader's state
	// gets it.
	seen func(t *term, e *leader.Event)
}

// New returns a fleet whose time begins warmUp before 0. The caller advances time with Until.
func New(cfg *Config) (*Fleet, error) {
	f := &Fleet{
		cfg: cfg, now: -warmUp, rng: rand.New(rand.NewPCG(cfg.Seed, 14)), ahead: cfg.RTT,
		named: map[names.AgentName]*agent{}, lastAt: map[[2]*endpoint]time.Duration{},
		told:  map[names.TableKey]leader.Latency{},
		known: &leader.Advice{Limit: cfg.Limit, Prices: Versioned(cfg.Prices), Priced: true},
	}
	f.addAgents()
	f.calm = f.isCalm()
	if cfg.Settled {
		f.now = 0
	}
	for i := range cfg.Gateways {
		g, err := newGateway(f, i)
		if err != nil {
			return nil, err
		}
		f.gateways = append(f.gateways, g)
	}
	if cfg.Settled {
		return f, f.beginSettled()
	}
	// A random begin, so that the times of heartbeats depend on the seed.
	begin := f.now + time.Duration(f.rng.Int64N(int64(heartbeats)))
	for _, a := range f.agents {
		if a.left {
			continue
		}
		if err := a.joinAt(begin); err != nil {
			return nil, err
		}
	}
	for i, fault := range byTime(cfg.Faults) {
		f.results = append(f.results, Result{Fault: fault.String(), at: fault.At})
		f.do(fault.At, func() { f.strikeFault(fault, &f.results[i]) })
	}
	return f, nil
}

// addAgents adds an agent for each lane, and the latencies that are known of it.
func (f *Fleet) addAgents() {
	f.indexOf = map[names.ModelKey]int{}
	for i := range f.cfg.Models {
		f.indexOf[f.cfg.Models[i].Name] = i
		f.laws = append(f.laws, f.cfg.Models[i].Law)
	}
	number, known := map[names.LaneType]int{}, map[names.TableKey]bool{}
	for i := range f.cfg.Lanes {
		l := &f.cfg.Lanes[i]
		number[l.Type]++
		if f.cfg.learns() {
			l.Known, l.Predicted = slices.Clone(l.Known), slices.Clone(l.Predicted)
		}
		a := &agent{endpoint: newHost(), f: f, index: i, lane: l, wakeAt: Never}
		a.resetLane()
		a.distance = l.Distance
		a.member = &leader.Member{Name: agentName(l.Type, number[l.Type]), Type: l.Type, Lanes: 1}
		a.member.OwnType = l.Type.Own(a.member.Name)
		for m, table := range l.Predicted {
			if table == nil {
				continue
			}
			model := &f.cfg.Models[m]
			if l.Holds == nil || slices.Contains(l.Holds, m) {
				a.member.Models = append(a.member.Models, model.describeOn(l.Type))
			}
			if key := (names.TableKey{Model: model.leaderID().Key(), Type: l.Type}); !known[key] {
				known[key] = true
				f.known.Latencies = append(f.known.Latencies, &leader.Latency{
					TableKey: key, Table: table, Law: model.Law,
				})
			}
		}
		a.dead, a.left = l.Absent, l.Absent
		f.agents = append(f.agents, a)
		f.named[a.member.Name] = a
	}
}

// describeOn describes a model on a lane of a type.
func (m *Model) describeOn(laneType names.LaneType) leader.HeldModel {
	return leader.HeldModel{
		ModelID: m.leaderID(), QoSTarget: m.QoSTarget, Share: m.Share,
		Largest: m.LargestBatchSize, RejectLate: m.RejectLate,
		Splits: m.Splits, Merge: string(m.Merge), Family: string(m.Family), Accuracy: m.Accuracy,
		Profile: profileKey(m, laneType),
	}
}

// Results returns the results of the faults, in the order of their times.
func (f *Fleet) Results() []Result { return f.results }

// Steps returns how often leaders were stepped, and the wall time that it took by [Config.Clock].
func (f *Fleet) Steps() (n int, cost time.Duration) { return f.steps, f.cost }

// Probes returns how many probes gateways have sent that had no leader.
func (f *Fleet) Probes() uint64 { return f.probes }

// Stop ends the run: nothing happens any more.
func (f *Fleet) Stop() { f.stopped = true }

// Now returns the fleet's present time.
func (f *Fleet) Now() time.Duration { return f.now }

func (f *Fleet) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// Arrive makes a query arrive now, at the gateway whose turn it is.
func (f *Fleet) Arrive(q ArrivingQuery) {
	f.now = q.Arrival
	f.open++
	f.routeToGateway(q)
}

// ArriveLater makes a query arrive at its time of arrival, which is to come.
func (f *Fleet) ArriveLater(q ArrivingQuery) {
	f.open++
	f.do(q.Arrival, func() { f.routeToGateway(q) })
}

func (f *Fleet) routeToGateway(q ArrivingQuery) {
	f.gateways[q.Sequence%uint64(len(f.gateways))].takeQuery(q)
}

// do schedules a function for a time.
func (f *Fleet) do(at time.Duration, what func()) {
	f.events.push(event{at: max(at, f.now), do: what})
}

// Until advances the fleet to time t. If t is [Never], it ends when all queries have an outcome and
// Window has passed since the last fault; queries to which nothing happens any more then count as
// never served. It returns an error if ctx ends or the simulation finds a contradiction.
func (f *Fleet) Until(ctx context.Context, t time.Duration) error {
	for f.err == nil && !f.stopped && f.nextAt() <= t {
		if f.done++; f.done%interruptible == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if t == Never && (f.open == 0 && f.now >= f.faultAt+Window || f.isIdle() ||
			f.nextAt() == Never) {
			break
		}
		f.next()
	}
	if t < Never || f.err != nil || f.stopped {
		return f.err
	}
	for _, g := range f.gateways {
		g.state.Close(fate(NeverServed))
		g.carryOut()
	}
	return f.writeRecordings()
}

// nextAt is when something happens next, Never if nothing does.
func (f *Fleet) nextAt() time.Duration {
	at := Never
	if e := f.events.peek(); e != nil {
		at = e.at
	}
	if t := f.nextToWake(); t != nil {
		at = min(at, max(t.wakeAt, f.now))
	}
	return at
}

// next lets happen what happens next. Leaders wake after all else that happens at the same time.
func (f *Fleet) next() {
	e := f.events.peek()
	if t := f.nextToWake(); t != nil && (e == nil || t.wakeAt < e.at) {
		f.now = max(f.now, t.wakeAt)
		t.wake()
		return
	}
	happens := f.events.pop()
	f.now = happens.at
	switch {
	case happens.message != nil:
		f.deliverMessage(happens.message)
	case happens.host != nil:
		f.deliverTo(happens.host, happens.do)
	default:
		happens.do()
	}
}

// nextToWake is the term whose leader wakes first, nil if none does.
func (f *Fleet) nextToWake() (first *term) {
	for _, t := range f.liveTerms {
		if t.wakeAt < Never && !t.wakeDelayed && (first == nil || t.wakeAt < first.wakeAt) {
			first = t
		}
	}
	return first
}

// isIdle reports whether nothing has happened to any query for Patience, and no lane runs a query.
func (f *Fleet) isIdle() bool {
	runs := func(a *agent) bool { return len(a.running) > 0 && !a.isFrozen() }
	return f.now-f.movedAt > Patience && !slices.ContainsFunc(f.agents, runs)
}

// writeRecordings writes the recordings of the terms to Config.Record, one after the other.
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
