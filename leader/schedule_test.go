package leader

import (
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

var (
	schedules = flag.Int("schedules", 0,
		"how many random schedules to run; 0: 100,000, and less with -short or the race detector")
	seedFlag = flag.Uint64("seed", 0,
		"the one seed to run and trace; 0: as many as -schedules says")
)

// raceDetector is set when it is on, which makes everything slower.
var raceDetector bool

// worldLatency is what is known of the lanes of a world.
var worldLatency = sync.OnceValue(func() *Latency {
	table, err := match.NewTable(risingLatency{}, 100)
	if err != nil {
		panic(err)
	}
	profile, err := flatProfile(worldMean)
	if err != nil {
		panic(err)
	}
	return &Latency{
		TableKey: names.TableKey{Model: "m/1", Type: "box/cpu/1"}, Profile: profile, Table: table,
	}
})

// risingLatency is the latency on the lanes of a world.
type risingLatency struct{}

func (risingLatency) Mean(batch int) time.Duration {
	return worldMean/2 + worldMean*time.Duration(batch)/100
}

func (l risingLatency) Quantile(_ float64, batch int) time.Duration { return l.Mean(batch) * 6 / 5 }

// join has a member join.
func (w *world) join() *testMember {
	m := &testMember{w: w, member: box(fmt.Sprintf("w%d", len(w.members))), slow: 1, known: true}
	m.member.Lanes = 1 + w.rng.IntN(2)
	m.member.Models[0].QoSTarget, m.member.Models[0].Splits = worldTarget, true
	m.lanes = make([][]*testAttempt, m.member.Lanes)
	w.members = append(w.members, m)
	if w.state != nil {
		w.view()
		w.open(m)
	}
	return m
}

// runSchedule lets faults happen to a fleet, then none, and returns the first broken promise.
// Everything follows from the seed.
func runSchedule(seed uint64, m *mutant, trace func(string, ...any)) error {
	w := newWorld(seed)
	w.mutant, w.trace = m, trace
	r := w.rng
	for range 1 + r.IntN(3) {
		w.join()
	}
	for i := range 1 + r.IntN(2) {
		g := &testGateway{w: w, id: uint64(i + 1), splits: !w.one(4)}
		w.gateways = append(w.gateways, g)
	}
	w.lead()
	w.run(50 * time.Millisecond)
	const chaos = 600 * time.Millisecond
	arrivals := func(n int, until time.Duration) {
		for range n {
			w.after(w.between(0, until-w.now),
				func() { w.gateways[r.IntN(len(w.gateways))].arrive() })
		}
	}
	arrivals(5+r.IntN(25), chaos)
	for range r.IntN(6) {
		w.after(w.between(0, chaos-w.now), w.randomFault)
	}
	cancels := func(n int, until time.Duration) {
		for range n {
			w.after(w.between(0, until-w.now), w.cancel)
		}
	}
	cancels(r.IntN(4), chaos)
	w.run(chaos)

	// Quiet: all that was cut comes back, and somebody leads.
	w.note("quiet")
	for _, m := range w.members {
		m.slow = 1
	}
	if !slices.ContainsFunc(w.members,
		func(m *testMember) bool { return !m.dead && !m.member.Draining }) {
		w.join()
	}
	if w.state == nil {
		w.lead()
	}
	w.run(max(w.calm, w.now) + 5*time.Second)
	w.check("after the last fault")
	arrivals(10, w.now+100*time.Millisecond)
	cancels(r.IntN(4), w.now+100*time.Millisecond)
	for range 50 {
		w.run(w.now + 4*time.Millisecond)
		if w.bound == 0 && w.fault == nil {
			w.compare()
		}
	}
	w.run(w.now + 500*time.Millisecond)
	w.check("at the end")
	return w.fault
}

// cancel has a client give up a query.
func (w *world) cancel() {
	open := slices.DeleteFunc(slices.Clone(w.queries),
		func(q *testQuery) bool { return q.outcome != "" || q.g.dead })
	if len(open) == 0 {
		return
	}
	q := open[w.rng.IntN(len(open))]
	isPart := func(q *testQuery) bool { return q.whole != nil }
	if i := slices.IndexFunc(open, isPart); i >= 0 {
		q = open[i] // they are few
	}
	if q.whole != nil {
		q = q.whole
	}
	if c := q.at; c != nil {
		q.at = nil
		q.g.abort(c)
	}
	q.g.end(q, "cancelled")
}

// compare checks that the leader's picture of the lanes is the lanes'. Nothing is under way.
func (w *world) compare() {
	for _, m := range w.members {
		for lane, queue := range m.lanes {
			if m.dead {
				queue = nil
			}
			held := w.state.Holds(m.member.Name, lane)
			for _, a := range queue {
				if a.call.q.g.dead {
					continue
				}
				if !slices.ContainsFunc(held, func(h Held) bool {
					return h.Gateway == a.call.q.g.id && h.Sequence == a.call.q.sequence &&
						h.Attempt == a.call.attempt
				}) {
					w.failf("lane %d of %s has %v, of which the leader does not know", lane,
						m.member.Name, a.call.q)
				}
			}
			if len(held) > len(queue) {
				w.failf("lane %d of %s has %d, the leader believes %v", lane, m.member.Name,
					len(queue), held)
			}
		}
	}
}

// check checks what must be so once it has been quiet.
func (w *world) check(when string) {
	if w.fault != nil {
		return
	}
	for _, q := range w.queries {
		if q.outcome == "" && !q.g.dead {
			w.failf("%s %v has no outcome: it has made %d attempts", when, q, q.attempts)
		}
	}
	lanes := 0
	for _, m := range w.members {
		if !m.dead {
			lanes += len(m.lanes)
		}
	}
	if n := w.state.Sizes(); n["waiting"]+n["reserved"]+n["queries"]+n["parked"] > 0 ||
		n["lanes"] != lanes {
		w.failf("%s the leader knows %v, want nothing of queries, and %d lanes", when, n, lanes)
	}
	w.compare()
}

func (w *world) randomFault() {
	r := w.rng
	m := w.members[r.IntN(len(w.members))]
	g := w.gateways[r.IntN(len(w.gateways))]
	w.faulty(w.now)
	switch r.IntN(10) {
	case 0: // a member crashes, and perhaps another comes
		w.crash(m)
		if w.one(2) {
			w.after(w.between(0, 300*time.Millisecond), func() { w.join() })
		}
	case 1, 2: // a link breaks, and comes back
		w.breakLink(
			m,
			[]time.Duration{
				0, 50 * time.Millisecond, 400 * time.Millisecond, 1500 * time.Millisecond,
			}[r.IntN(4)])
	case 3:
		d := w.between(time.Millisecond, 600*time.Millisecond)
		w.note("%s is frozen for %v", m.member.Name, d)
		m.frozen = max(m.frozen, w.now+d)
		w.faulty(m.frozen)
		w.after(d, func() { w.excuse(m) }) // it may greet before it takes what came meanwhile
	case 4:
		w.note("gateway %d crashes", g.id)
		g.dead = true
		w.cutGateway(g)
		for _, q := range g.queries {
			if q.at != nil {
				g.abort(q.at)
			}
		}
		w.gateways = append(w.gateways,
			&testGateway{w: w, id: uint64(len(w.gateways) + 1), splits: g.splits})
		w.connect(w.gateways[len(w.gateways)-1])
	case 5:
		d := w.between(0, 100*time.Millisecond)
		w.note("gateway %d loses the leader for %v", g.id, d)
		g.shut = w.now + d
		w.faulty(g.shut)
		w.cutGateway(g)
	case 6, 7:
		w.depose()
		w.after(w.between(0, 150*time.Millisecond), func() {
			if w.state == nil {
				w.lead()
			}
		})
		w.faulty(w.now + 150*time.Millisecond)
	case 8:
		w.note("%s is slow", m.member.Name)
		m.slow = 1 + r.IntN(20)
	case 9:
		w.note("the network is jammed")
		w.jammed = w.now + w.between(0, 100*time.Millisecond)
		w.faulty(w.jammed + 30*worldDelay)
	}
}

func (w *world) crash(m *testMember) {
	alive := 0
	for _, o := range w.members {
		if !o.dead {
			alive++
		}
	}
	if m.dead || alive == 1 {
		return
	}
	w.note("%s crashes", m.member.Name)
	w.excuse(m)
	m.dead = true
	for lane, queue := range m.lanes {
		for _, a := range queue {
			a.gone = true
			w.send(&a.call.back, false, func() { a.call.ended(false) })
		}
		m.lanes[lane] = nil
	}
	w.breakLink(m, 0)
	d := w.between(0, time.Second)
	w.faulty(w.now + d)
	w.after(d, func() {
		m.known = false
		if w.state != nil {
			w.view()
		}
	})
}

// breakLink breaks the leader's link to a member, for as long.
func (w *world) breakLink(m *testMember, d time.Duration) {
	w.note("the link to %s breaks for %v", m.member.Name, d)
	m.shut = max(m.shut, w.now+d)
	w.faulty(m.shut)
	if m.link == nil || w.state == nil {
		return
	}
	w.cut(m)
	w.step(&Event{Kind: LinkBroken, Agent: m.member.Name, Gone: m.dead, Why: "a test"})
	w.open(m)
}

// cutGateway ends a gateway's stream.
func (w *world) cutGateway(g *testGateway) {
	s := g.stream
	if s == nil {
		return
	}
	s.up.ended, s.down.ended = true, true
	g.closed()
	w.step(&Event{Kind: GatewayLost, Gateway: g.id})
	if !g.dead {
		w.connect(g)
	}
}

// TestSchedules checks, over random schedules of faults: each query gets one outcome; none is lost,
// none runs twice, and none fails, unless a lane of its was lost; no lane is given more than it may
// hold; and after the last fault the leader's picture of the lanes is the lanes'.
func TestSchedules(t *testing.T) {
	if *seedFlag != 0 {
		if err := runSchedule(*seedFlag, nil, t.Logf); err != nil {
			t.Error(err)
		}
		return
	}
	n := *schedules
	switch {
	case n > 0:
	case raceDetector:
		n = 300
	case testing.Short():
		n = 2000
	default:
		n = 100_000
	}
	// Schedules leave much garbage and hold little: as often as by default, its collection takes 40
	// % of the CPU time, and the goroutines wait for each other.
	defer debug.SetGCPercent(debug.SetGCPercent(1600))
	var next, failed atomic.Uint64
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for seed := next.Add(1); seed <= uint64(n) && failed.Load() < 5; seed = next.Add(1) {
				if err := runSchedule(seed, nil, nil); err != nil {
					failed.Add(1)
					t.Errorf("seed %d: %v (-run TestSchedules -seed %d -v shows what happened)",
						seed, err, seed)
				}
			}
		})
	}
	group.Wait()
}
