package leader

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
)

// The fleet of the benchmarks at scale.
const (
	scaleLanes, scaleTypes            = 2000, 10
	scaleModels, scaleSets, scaleHeld = 200, 400, 10
	scaleTarget                       = 100 * time.Millisecond
)

func scaleModel(i int) ModelID { return ModelID{fmt.Sprintf("model%03d", i), 1} }

// scaleMean is how long a query of a model takes on a type.
func scaleMean(model, typ int) time.Duration {
	return time.Duration(2000+20*model+1000*typ) * time.Microsecond
}

// scaleMember describes an agent with one lane.
func scaleMember(i int) *Member {
	typ := fmt.Sprintf("type%d/cpu/1", i/7%scaleTypes)
	m := &Member{
		Name: names.AgentName(fmt.Sprintf("agent%04d", i)), Type: names.LaneType(typ), Lanes: 1,
		OwnType: names.LaneType(fmt.Sprintf("%s@agent%04d", typ, i)),
	}
	r := rand.New(rand.NewPCG(uint64(i%scaleSets), 3))
	held := r.Perm(scaleModels)[:scaleHeld]
	slices.Sort(held)
	for _, k := range held {
		m.Models = append(m.Models, HeldModel{
			ModelID: scaleModel(k), QoSTarget: scaleTarget, Share: .99, Largest: 100,
		})
	}
	return m
}

func scaleAdvice(tb testing.TB) *Advice {
	a := &Advice{}
	for typ := range scaleTypes {
		a.Prices = append(a.Prices, fluid.Price{
			Type:    names.LaneType(fmt.Sprintf("type%d/cpu/1", typ)),
			PerMs:   1 / float64(scaleMean(scaleModels/2, typ).Milliseconds()),
			Service: scaleMean(scaleModels/2, typ),
		})
	}
	for model := range scaleModels {
		for typ := range scaleTypes {
			table, err := match.NewTable(flat(scaleMean(model, typ)), 100)
			if err != nil {
				tb.Fatal(err)
			}
			a.Latencies = append(a.Latencies, &Latency{
				TableKey: names.TableKey{
					Model: scaleModel(model).Key(),
					Type:  names.LaneType(fmt.Sprintf("type%d/cpu/1", typ)),
				},
				Profile: profile(tb, scaleMean(model, typ)), Table: table,
			})
		}
	}
	return a
}

// takeOver has a new leader take over the fleet: the gateway submits its queries, of which half are
// at lanes, then each agent describes itself and greets, and the latencies are told. Each message
// is a step, in which do tells the leader.
func takeOver(members []*Member, advice *Advice, do func(e *Event)) {
	do(&Event{Kind: ViewChanged, Members: members})
	do(&Event{Kind: GatewayConnected, Gateway: 7})
	held := func(i int) *Held {
		return &Held{
			Gateway: 7, Sequence: uint64(4 * i), Attempt: 1, Model: members[i].Models[0].ModelID,
			BatchSize: 3,
		}
	}
	for i, m := range members {
		h := held(i)
		do(&Event{
			Kind: Submitted, Gateway: 7, Sequence: h.Sequence, Model: h.Model, BatchSize: 3,
			Attempt: 1, Agent: m.Name,
		})
		do(&Event{
			Kind: Submitted, Gateway: 7, Sequence: h.Sequence + 4*uint64(len(members)),
			Model: h.Model, BatchSize: 3,
		})
	}
	for i, m := range members {
		do(&Event{Kind: Described, Member: m})
		do(&Event{Kind: Greeted, Agent: m.Name, Holds: []Held{*held(i)}})
	}
	do(&Event{Kind: Learned, Advice: advice})
}

func scaleMembers() (all []*Member) {
	for i := range scaleLanes {
		all = append(all, scaleMember(i))
	}
	return all
}

// TestTakeoverCost: what a takeover costs is in proportion to the fleet, and the profiles that are
// told at last are taken in at once. Allocations stand for the work, of which the more goes into
// the list of members.
func TestTakeoverCost(t *testing.T) {
	advice, members := scaleAdvice(t), scaleMembers()
	cost := func(n int) float64 {
		return testing.AllocsPerRun(1, func() {
			s, err := NewState(Config{Self: "leader"})
			if err != nil {
				t.Fatal(err)
			}
			takeOver(members[:n], advice, func(e *Event) { s.Step(0, e) })
			if all, _ := s.Waiting(); len(s.lanes) != n || s.parkings > 0 || all == 0 {
				t.Fatalf("%d lanes, %d queries parked, %d waiting", len(s.lanes), s.parkings, all)
			}
		})
	}
	few, many := cost(400), cost(1600)
	if perMember := (many - few) / 1200; perMember > 100 {
		t.Errorf("400 members take %v allocations, 1600 take %v: %v for each more, want at most 100",
			few, many, perMember)
	}
}

// TestAdviceCost: the matcher takes the latencies of an advice in at once, and not one after the
// other.
func TestAdviceCost(t *testing.T) {
	advice, members := scaleAdvice(t), scaleMembers()
	s, err := NewState(Config{Self: "leader"})
	if err != nil {
		t.Fatal(err)
	}
	takeOver(members[:100], advice, func(e *Event) { s.Step(0, e) })
	n := testing.AllocsPerRun(1, func() { s.Step(0, &Event{Kind: Learned, Advice: advice}) })
	if most := float64(len(advice.Latencies)) / 10; n > most {
		t.Errorf("%d latencies take %v allocations, want at most %v", len(advice.Latencies), n,
			most)
	}
}

// BenchmarkTakeover times all that a new leader does about 2,000 lanes that hold 400 sets of 200
// models, and 4,000 queries.
func BenchmarkTakeover(b *testing.B) {
	advice, members := scaleAdvice(b), scaleMembers()
	b.ReportAllocs()
	var slowest time.Duration
	for b.Loop() {
		s, err := NewState(Config{Self: "leader"})
		if err != nil {
			b.Fatal(err)
		}
		now := time.Duration(0)
		takeOver(members, advice, func(e *Event) {
			for ; now >= s.Next(); now++ {
				s.Step(now, &Event{Kind: TimePassed})
			}
			start := time.Now()
			now += 12 * time.Microsecond // all greet in the time in which queries wait for that
			for _, a := range s.Step(now, e) {
				if a.Kind == Nonsense {
					b.Fatal(a.Message)
				}
			}
			slowest = max(slowest, time.Since(start))
		})
	}
	b.ReportMetric(float64(slowest)/1e6, "slowest-step-ms")
}

// A scaleRun is a fleet that serves.
type scaleRun struct {
	*State
	now   time.Duration
	ends  items
	times []time.Duration // of steps
	order int
}

func (r *scaleRun) step(e Event) {
	start := time.Now()
	all := r.Step(r.now, &e)
	r.times = append(r.times, time.Since(start))
	for i := range all {
		if a := &all[i]; a.Kind == Assign {
			d, agent, model := a.Decision, a.Agent, a.Model
			r.order++
			heap.Push(&r.ends, item{r.now + d.Wait + d.Latency, r.order, func() {
				r.step(Event{
					Kind: Completed, Agent: agent, Gateway: d.Query.Gateway,
					Sequence: d.Query.Sequence, Attempt: d.Attempt, Model: model, BatchSize: 3,
					Execution: d.Latency, Latency: d.Waited + d.Wait + d.Latency,
				})
				r.step(Event{
					Kind: Cancelled, Gateway: d.Query.Gateway, Sequence: d.Query.Sequence,
				})
			}})
		}
	}
}

// BenchmarkStep times the steps of a leader that serves with 2,000 lanes that hold 400 sets of 200
// models: submits, completions, and the time that passes, at several loads.
func BenchmarkStep(b *testing.B) {
	advice := scaleAdvice(b)
	for _, rate := range []float64{50e3, 120e3, 300e3} {
		b.Run(fmt.Sprintf("rate=%.0f", rate), func(b *testing.B) {
			s, err := NewState(Config{Self: "leader"})
			if err != nil {
				b.Fatal(err)
			}
			members := scaleMembers()
			r := &scaleRun{State: s}
			r.step(Event{Kind: ViewChanged, Members: members})
			for _, m := range members {
				r.step(Event{Kind: Described, Member: m})
				r.step(Event{Kind: Greeted, Agent: m.Name})
			}
			r.step(Event{Kind: Learned, Advice: advice})
			r.step(Event{Kind: GatewayConnected, Gateway: 7})
			random, sequence := rand.New(rand.NewPCG(1, 2)), uint64(0)
			r.now = time.Second
			arrive := func() {
				sequence += 4
				at := r.now + time.Duration(random.ExpFloat64()/rate*1e9)
				for {
					if r.Next() <= at && (len(r.ends) == 0 || r.Next() <= r.ends[0].at) {
						r.now = max(r.now+1, r.Next())
						r.step(Event{Kind: TimePassed})
					} else if len(r.ends) > 0 && r.ends[0].at <= at {
						it := heap.Pop(&r.ends).(item)
						r.now = max(r.now, it.at)
						it.do()
					} else {
						break
					}
				}
				r.now = at
				r.step(Event{
					Kind: Submitted, Gateway: 7, Sequence: sequence,
					Model: scaleModel(random.IntN(scaleModels)), BatchSize: 1 + random.IntN(100),
					TimeLeft: 2 * time.Second,
				})
			}
			for range 20000 {
				arrive()
			}
			r.times = r.times[:0]
			for b.Loop() {
				arrive()
			}
			sum := time.Duration(0)
			for _, t := range r.times {
				sum += t
			}
			slices.Sort(r.times)
			b.ReportMetric(float64(sum)/float64(len(r.times))/1e3, "us/step")
			b.ReportMetric(float64(r.times[len(r.times)*99/100])/1e3, "p99-us")
			b.ReportMetric(float64(r.times[len(r.times)-1])/1e3, "max-us")
			all, late := r.Waiting()
			b.ReportMetric(float64(all), "waiting")
			b.ReportMetric(float64(late), "late")
		})
	}
}
