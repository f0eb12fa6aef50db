package match

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// A tenant asks for queries of batch sizes 1 to most at a rate, from one time to another.
type tenant struct {
	name     string
	band     int
	weight   float64
	rate     float64 // queries/s
	most     int
	from, to time.Duration
}

// A tenantTally is what a tenant got.
type tenantTally struct {
	time     time.Duration   // of lanes
	inTime   []time.Duration // the latencies of what was answered
	answered int
}

func (t *tenantTally) p99() time.Duration {
	if len(t.inTime) == 0 {
		return math.MaxInt64
	}
	slices.Sort(t.inTime)
	return t.inTime[len(t.inTime)*99/100]
}

type laneEnd struct {
	at time.Duration
	d  Decision
}

type laneEnds []laneEnd

func (h laneEnds) Len() int           { return len(h) }
func (h laneEnds) Less(i, j int) bool { return h[i].at < h[j].at }
func (h laneEnds) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *laneEnds) Push(x any)        { *h = append(*h, x.(laneEnd)) }
func (h *laneEnds) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// A tenantWorld is a pool of lanes of two types in virtual time, of which tenants ask a model with a
// target of 100 ms. A query of n items takes n ms on the fast type, and 1.5 n on the slow one.
type tenantWorld struct {
	lanes   int
	tenants []tenant
	during  time.Duration
	// anonymous says that the matcher is not told who asks.
	anonymous bool
	keeps     bool // log
	log       []byte
}

const tenantModel = "m"

func (w *tenantWorld) newMatcher(t testing.TB) *Matcher {
	m, err := New(Config{Policy: "horizon", Models: []Model{
		{Name: tenantModel, QoSTarget: 100 * time.Millisecond, LargestBatchSize: 20},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, typ := range []names.LaneType{"fast", "slow"} {
		table, err := NewTable(exact(1000+500*i), 20)
		if err != nil {
			t.Fatal(err)
		}
		mustStep(t, m, 0, Event{Kind: ProfileChanged, Model: tenantModel, Type: typ, Table: table})
	}
	mustStep(t, m, 0, Event{Kind: PricesChanged, Prices: []fluid.Price{
		{Type: "fast", PerMs: .1, Service: 10 * time.Millisecond},
		{Type: "slow", PerMs: .067, Service: 15 * time.Millisecond},
	}})
	for i := range w.lanes {
		mustStep(t, m, 0, Event{
			Kind: LaneJoined, Lane: LaneID(i + 1), Agent: "a",
			Type:   []names.LaneType{"fast", "slow"}[i%2],
			Models: []names.ModelKey{tenantModel},
		})
	}
	return m
}

// run returns what each tenant got, by its index.
func (w *tenantWorld) run(t testing.TB) []tenantTally {
	t.Helper()
	m := w.newMatcher(t)
	tallies := make([]tenantTally, len(w.tenants))
	type arrival struct {
		at        time.Duration
		of, batch int
	}
	var all []arrival
	for i, x := range w.tenants {
		// A tenant's queries do not depend on who else there is.
		r := rand.New(rand.NewPCG(uint64(i), 7))
		for at := x.from; at < min(x.to, w.during); {
			at += time.Duration(r.ExpFloat64() / x.rate * 1e9)
			all = append(all, arrival{at, i, 1 + r.IntN(x.most)})
		}
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return int(a.at - b.at) })
	var ends laneEnds
	var now time.Duration
	var next time.Time
	step := func(e Event) {
		decisions, wanted, err := m.Step(epoch.Add(now), &e)
		if err != nil {
			t.Fatal(err)
		}
		next = wanted
		for i := range decisions {
			d := decisions[i]
			if w.keeps {
				w.log = append(AppendDecision(w.log, &d), '\n')
			}
			if d.Action == Assign {
				heap.Push(&ends, laneEnd{now + d.Wait + d.Latency, d})
			}
		}
	}
	until := func(at time.Duration) {
		for {
			timer := at
			if !next.IsZero() {
				timer = next.Sub(epoch)
			}
			if len(ends) > 0 && ends[0].at <= min(at, timer) {
				e := heap.Pop(&ends).(laneEnd)
				now = e.at
				a := &all[e.d.Query.Sequence]
				tallies[a.of].time += e.d.Latency
				tallies[a.of].answered++
				tallies[a.of].inTime = append(tallies[a.of].inTime, now-a.at)
				step(Event{Kind: Completed, Query: e.d.Query, Attempt: e.d.Attempt, Lane: e.d.Lane})
			} else if timer < at {
				now = max(now+1, timer)
				step(Event{Kind: TimePassed})
			} else {
				now = at
				return
			}
		}
	}
	for i, a := range all {
		until(a.at)
		x := &w.tenants[a.of]
		e := Event{
			Kind: Submitted, Query: QueryID{1, uint64(i)}, Model: tenantModel, BatchSize: a.batch,
			TimeLeft: 300 * time.Millisecond, Tenant: x.name, Band: x.band, Weight: x.weight,
		}
		if w.anonymous {
			e.Tenant, e.Band, e.Weight = "", 0, 0
		}
		step(e)
	}
	return tallies
}

// jain is Jain's index of fairness of what tenants got by their weights.
func jain(tallies []tenantTally, tenants []tenant) float64 {
	sum, squares := 0.0, 0.0
	for i := range tallies {
		x := tallies[i].time.Seconds() / max(tenants[i].weight, 1e-9)
		if tenants[i].weight == 0 {
			x = tallies[i].time.Seconds()
		}
		sum, squares = sum+x, squares+x*x
	}
	return sum * sum / float64(len(tallies)) / squares
}

// TestEqualTenants: in overload equal tenants get equal time, whatever they ask for and however
// large their queries are; and tenants of other weights get time by these.
func TestEqualTenants(t *testing.T) {
	for _, lanes := range []int{4, 10} {
		// queries/s of ten items
		capacity := float64(lanes) / 2 * (1000 + 667) / 10
		for _, weights := range [][]float64{{0, 0, 0, 0}, {1, 2, 4, 1}} {
			w := tenantWorld{lanes: lanes, during: 6 * time.Second}
			for i, x := range []struct {
				load float64
				most int
			}{{.6, 20}, {1, 20}, {.7, 4}, {.9, 10}} {
				load := x.load * max(weights[i], 1)
				w.tenants = append(w.tenants, tenant{
					name: fmt.Sprintf("t%d", i), weight: weights[i], to: w.during,
					rate: load * capacity * 10.5 / (float64(x.most+1) / 2), most: x.most,
				})
			}
			tallies := w.run(t)
			index := jain(tallies, w.tenants)
			t.Logf("%d lanes, weights %v: Jain's index %.4f", lanes, weights, index)
			for i := range tallies {
				t.Logf("  %.1f s, p99 %v", tallies[i].time.Seconds(), tallies[i].p99())
			}
			if index < .99 {
				t.Errorf("%d lanes, weights %v: Jain's index is %.4f, want .99", lanes, weights,
					index)
			}
		}
	}
}

// TestFlood: a flood of a low band makes a paid tenant wait for no more than the rest of a run of the
// flood's; the flood has all that the paid tenant leaves, and all once that has gone.
func TestFlood(t *testing.T) {
	for _, lanes := range []int{4, 10} {
		capacity := float64(lanes) / 2 * (1000 + 667) / 10
		during := 8 * time.Second
		paid := tenant{name: "paid", band: 1, rate: .3 * capacity, most: 20, to: during / 2}
		flood := tenant{name: "free", band: 9, rate: 2 * capacity, most: 20, to: during}
		alone := (&tenantWorld{lanes: lanes, during: during, tenants: []tenant{paid}}).run(t)
		both := (&tenantWorld{
			lanes: lanes, during: during, tenants: []tenant{paid, flood},
		}).run(t)
		// the longest run of the flood
		most := 30 * time.Millisecond
		limit := time.Duration(1.05*float64(alone[0].p99())) + most
		busy := (both[0].time + both[1].time).Seconds() / during.Seconds() / float64(lanes)
		t.Logf("%d lanes: p99 %v alone, %v in the flood, limit %v; %d and %d answered; %.3f busy",
			lanes, alone[0].p99(), both[0].p99(), limit, alone[0].answered, both[0].answered, busy)
		if both[0].p99() > limit || both[0].answered < alone[0].answered {
			t.Errorf("%d lanes: p99 is %v in the flood, want <= %v; %d answered, want %d", lanes,
				both[0].p99(), limit, both[0].answered, alone[0].answered)
		}
		if busy < .97 {
			t.Errorf("%d lanes: they are busy for %.3f of the time, want .97", lanes, busy)
		}
	}
}

// TestBandFloor: the lowest band gets its floor beside a higher one that would take all.
func TestBandFloor(t *testing.T) {
	const lanes = 10
	capacity := float64(lanes) / 2 * (1000 + 667) / 10
	w := tenantWorld{lanes: lanes, during: 8 * time.Second}
	for i, band := range []int{2, 7} {
		w.tenants = append(w.tenants, tenant{
			name: fmt.Sprint(i), band: band, rate: 2 * capacity, most: 20, to: w.during,
		})
	}
	got := w.run(t)
	share := got[1].time.Seconds() / (got[0].time + got[1].time).Seconds()
	t.Logf("the low band got %.4f", share)
	if share < .9*bandFloor || share > 1.2*bandFloor {
		t.Errorf("the low band got %.4f of the time, want %v", share, bandFloor)
	}
}

// TestOneFlow: who asks makes no difference if only one does.
func TestOneFlow(t *testing.T) {
	for _, load := range []float64{.5, 1.5} {
		w := tenantWorld{lanes: 10, during: 2 * time.Second, keeps: true, tenants: []tenant{{
			name: "x", band: 3, weight: 7, rate: load * 10 / 2 * (1000 + 667) / 10.5, most: 20,
			to: time.Minute,
		}}}
		w.run(t)
		anonymous := w
		anonymous.anonymous, anonymous.log = true, nil
		anonymous.run(t)
		if len(w.log) == 0 || string(w.log) != string(anonymous.log) {
			t.Errorf("load %v: the decisions for one tenant are not those for none", load)
		}
	}
}
