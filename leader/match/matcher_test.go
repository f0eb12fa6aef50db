package match

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/internal/assign"
)

var epoch = time.Unix(1000, 0)

func mustStep(t testing.TB, m *Matcher, at time.Duration, e Event) []Decision {
	t.Helper()
	decisions, _, err := m.Step(epoch.Add(at), &e)
	if err != nil {
		t.Fatal(err)
	}
	return decisions
}

// TestKairosAgainstBruteForce compares a round with all assignments there are,
// at costs computed here from Eq. 4 to 8.
func TestKairosAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const target = 100.0 // ms
	for n := range 500 {
		m, err := New(Config{
			Policy: "kairos", Models: []Model{
				{Name: "m", QoSTarget: 100 * time.Millisecond, LargestBatchSize: 200},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		types := []string{"a", "b", "c"}
		tables := map[string]stairs{}
		for _, typ := range types {
			tables[typ] = stairs{1000 + r.IntN(30000), r.IntN(30000)}
			tab, err := NewTable(tables[typ], 200)
			if err != nil {
				t.Fatal(err)
			}
			mustStep(t, m, 0, Event{
				Kind: ProfileChanged, Model: "m", Type: names.LaneType(typ), Table: tab,
			})
		}
		lanes, queries := 1+r.IntN(4), 1+r.IntN(5)
		typ, remaining := make([]string, lanes), make([]float64, lanes)
		fastest := math.Inf(1)
		for j := range lanes {
			typ[j] = types[r.IntN(len(types))]
			busy := time.Duration(1+r.IntN(60)) * time.Millisecond
			remaining[j] = toMs(busy)
			fastest = min(fastest, toMs(tables[typ[j]].Mean(200)))
			mustStep(t, m, 0, Event{
				Kind: LaneJoined, Lane: LaneID(j), Type: names.LaneType(typ[j]),
				Models:    []names.ModelKey{"m"},
				Remaining: busy,
			})
		}
		cost := make([]float64, 0, queries*lanes)
		for i := range queries {
			batch, waited := 1+r.IntN(200), time.Duration(r.IntN(70))*time.Millisecond
			mustStep(t, m, 0, Event{
				Kind: Submitted, Query: QueryID{1, uint64(i)}, Model: "m", BatchSize: batch,
				Waited: waited,
			})
			for j := range lanes {
				free := remaining[j]
				if j == 0 { // it will be open
					free = 0
				}
				L := free + toMs(tables[typ[j]].Mean(batch))
				if L+toMs(waited) > 0.98*target { // Eq. 5 and 8
					L = 10 * target
				}
				C := fastest / toMs(tables[typ[j]].Mean(200)) // Definition 1
				cost = append(cost, C*L/target)
			}
		}
		decisions := mustStep(t, m, 0, Event{Kind: LaneRemaining, Lane: 0})
		k := m.shards[0].policy.(*kairos)
		if queries > roundRows*lanes {
			continue // the round was bounded
		}
		got, pairs, dispatched := 0.0, 0, -1
		for i, l := range k.match {
			if l < 0 {
				continue
			}
			row, column := int(k.rows[i].id.Sequence), int(k.columns[l].id)
			got += cost[row*lanes+column]
			pairs++
			if column == 0 {
				dispatched = row
			}
		}
		want, most, err := new(assign.Solver).Solve(cost, queries, lanes, make([]int, queries))
		if err != nil {
			t.Fatal(err)
		}
		if pairs != most || math.Abs(got-want) > 1e-9*want {
			t.Fatalf("case %d: costs %v: got %d pairs at %v, want %d at %v", n, cost, pairs, got,
				most, want)
		}
		if dispatched < 0 != (len(decisions) == 0) ||
			dispatched >= 0 && decisions[0].Query.Sequence != uint64(dispatched) {
			t.Fatalf("case %d: lane 0 was matched to query %d, got %+v", n, dispatched, decisions)
		}
	}
}

// busyPool is a matcher with a pool like the papers', and a load on it.
type busyPool struct {
	m     *Matcher
	now   time.Duration
	r     *rand.Rand
	gap   float64 // ms
	next  uint64
	due   []time.Duration // by lane; 0: idle
	query []Decision      // by lane
	late  int
	split int
	// splits says that the gateway can split.
	splits bool
	log    []logEntry
	setup  int // how much of the log came before the load
}

type logEntry struct {
	at    time.Duration
	event Event
}

// newBusyPool has base and aux lanes; load is a share of what they could do about.
func newBusyPool(tb testing.TB, policy string, base, aux, shardLanes int, load float64) *busyPool {
	const target = 25 * time.Millisecond
	m, err := New(Config{
		Policy: policy, ShardLanes: shardLanes, Models: []Model{
			{Name: "wnd", QoSTarget: target, LargestBatchSize: 1000, Splits: true},
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	p := &busyPool{
		m: m, r: rand.New(rand.NewPCG(1, 1)), due: make([]time.Duration, base+aux),
		query: make([]Decision, base+aux),
	}
	shape := map[string]stairs{"g4dn.xlarge": {2340, 352}, "r5n.large": {1690, 1845}}
	program := &fluid.Program{
		Unserved: 0.01, Types: []fluid.Type{
			{Name: "g4dn.xlarge", Count: base}, {Name: "r5n.large", Count: aux},
		},
	}
	for _, typ := range program.Types {
		tab, err := NewTable(shape[string(typ.Name)], 1000)
		if err != nil {
			tb.Fatal(err)
		}
		p.step(tb, Event{Kind: ProfileChanged, Model: "wnd", Type: typ.Name, Table: tab})
	}
	for batch := 50; batch <= 1000; batch += 50 {
		bin := fluid.Bin{BatchSize: batch, Share: shares(batch)}
		for _, typ := range program.Types {
			l := shape[string(typ.Name)].Mean(batch)
			if l > target {
				l = 0
			}
			bin.Latency = append(bin.Latency, l)
		}
		program.Bins = append(program.Bins, bin)
	}
	sol, err := new(fluid.Solver).Solve(program)
	if err != nil {
		tb.Fatal(err)
	}
	p.gap = 1000 / (sol.Rate * load)
	for i := range p.due {
		typ := "g4dn.xlarge"
		if i >= base {
			typ = "r5n.large"
		}
		p.step(tb, Event{
			Kind: LaneJoined, Lane: LaneID(i), Type: names.LaneType(typ), Models: []names.ModelKey{
				"wnd",
			},
		})
	}
	p.step(tb, Event{Kind: PricesChanged, Prices: sol.Prices})
	p.setup = len(p.log)
	return p
}

// shares is like the papers' trace: mostly 100 to 200, and a long tail.
func shares(batch int) float64 {
	switch {
	case batch <= 100:
		return 4
	case batch <= 200:
		return 32
	case batch <= 600:
		return 2.75
	}
	return 0.6
}

func (p *busyPool) batch() int {
	sum, x := 0.0, p.r.Float64()*(8+64+8*2.75+8*0.6)
	for b := 50; b < 1000; b += 50 {
		if sum += shares(b); x < sum {
			return b - p.r.IntN(50)
		}
	}
	return 1000 - p.r.IntN(50)
}

// run plays n arrivals and what completes meanwhile.
func (p *busyPool) run(tb testing.TB, n int) {
	for range n {
		arrival := p.now + time.Duration(p.r.ExpFloat64()*p.gap*1e6)
		for {
			first := -1
			for l, due := range p.due {
				if due > 0 && due <= arrival && (first < 0 || due < p.due[first]) {
					first = l
				}
			}
			if first < 0 {
				break
			}
			p.now, p.due[first] = p.due[first], 0
			d := p.query[first]
			p.step(tb, Event{Kind: Completed, Query: d.Query, Attempt: d.Attempt, Lane: d.Lane})
		}
		p.now = arrival
		p.next++
		p.step(tb, Event{
			Kind: Submitted, Query: QueryID{1, numbering * p.next}, Model: "wnd",
			BatchSize: p.batch(), TimeLeft: 250 * time.Millisecond, Splits: p.splits,
		})
	}
}

func (p *busyPool) step(tb testing.TB, e Event) {
	decisions, _, err := p.m.Step(epoch.Add(p.now), &e)
	if err != nil {
		tb.Fatal(err)
	}
	p.log = append(p.log, logEntry{p.now, e})
	for _, d := range decisions {
		if d.Action == Assign {
			p.due[d.Lane] = p.now + time.Duration(float64(d.Latency)*(0.95+0.1*p.r.Float64()))
			p.query[d.Lane] = d
		}
		if d.Reason != Matched {
			p.late++
		}
		if d.Action == Split {
			p.split++
			checkSplit(tb, p.m, &d)
		}
	}
}

func TestMatcherDoesNotAllocate(t *testing.T) {
	for _, policy := range Policies() {
		p := newBusyPool(t, policy, 1, 10, 0, 0.8)
		p.run(t, 20000)
		p.log = slices.Grow(p.log, 20000)
		// the map of queries may rehash
		if n := testing.AllocsPerRun(5, func() { p.run(t, 1000) }); n > 2 {
			t.Errorf("%s: got %v allocations for 1000 queries, want none", policy, n)
		}
	}
}

// In overload the waiting queries are bounded by their deadline, and so is what a
// matcher remembers.
func TestOverload(t *testing.T) {
	for _, policy := range Policies() {
		p := newBusyPool(t, policy, 1, 10, 0, 3)
		p.run(t, 3000)
		before, _ := p.m.Waiting()
		p.run(t, 3000)
		after, _ := p.m.Waiting()
		if limit := int(1.2 * 250 / p.gap); before > limit || after > limit {
			t.Errorf(
				"%s: %d, then %d queries wait, want at most %d, what arrives until the deadline",
				policy, before, after, limit)
		}
		if len(p.m.queries) != after+heldBy(p.m) {
			t.Errorf("%s: the matcher remembers %d queries; %d wait and %d are held", policy,
				len(p.m.queries), after, heldBy(p.m))
		}
	}
}

func heldBy(m *Matcher) (n int) {
	for _, l := range m.all {
		n += len(l.held)
	}
	return n
}

// Shards keep nearly all of what one global round reaches, and their cost does not
// grow with the pool.
func TestShards(t *testing.T) {
	p := newBusyPool(t, "kairos", 10, 100, 0, 0.8)
	if got := len(p.m.shards); got < 5 || got > 11 {
		t.Errorf("110 lanes: got %d shards, want 5 to 11", got)
	}
	for _, s := range p.m.shards {
		base := 0
		for _, l := range s.lanes {
			if l.typ.base {
				base++
			}
		}
		if len(s.lanes) < 10 || len(s.lanes) > 20 || base == 0 {
			t.Errorf("a shard has %d lanes, %d of the base type; want 10 to 20 and at least one",
				len(s.lanes), base)
		}
	}
	p.run(t, 20000)
	if share := float64(p.late) / 20000; share > 0.01 {
		t.Errorf("%.2f %% of the queries are late, want at most 1 %%", 100*share)
	}
	for j := range 100 {
		mustStep(t, p.m, p.now, Event{Kind: LaneLost, Lane: LaneID(109 - j)})
	}
	if got := len(p.m.shards); got != 1 {
		t.Errorf("10 lanes: got %d shards, want 1", got)
	}
}

func TestConfigRefuses(t *testing.T) {
	good := Config{Models: []Model{{Name: "a", QoSTarget: 1, LargestBatchSize: 1}}}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]Config{
		"named twice":      {Models: []Model{good.Models[0], good.Models[0]}},
		"QoS target is 0s": {Models: []Model{{Name: "a", LargestBatchSize: 1}}},
		"largest batch size": {
			Models: []Model{{Name: "a", QoSTarget: 1, LargestBatchSize: MaxBatchSize + 1}},
		},
		"fcfs, horizon":        {Models: good.Models, Policy: "magic"},
		"reproduce/ in":        {Models: good.Models, Policy: "power-of-two"},
		"dispatch ahead is -1": {Models: good.Models, DispatchAhead: -1},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestNewTableRefuses(t *testing.T) {
	if _, err := NewTable(stairs{0, 0}, 10); err == nil {
		t.Error("latency 0: no error")
	}
	if _, err := NewTable(stairs{1, 1}, 0); err == nil {
		t.Error("no batch size: no error")
	}
}

// wrongLatencies are mean latencies in ms by batch size, from 1 on, of which some are wrong.
type wrongLatencies []float64

func (m wrongLatencies) Mean(batchSize int) time.Duration { return fromMs(m[batchSize-1]) }

func (m wrongLatencies) Quantile(_ float64, batchSize int) time.Duration {
	return m.Mean(batchSize)
}

func TestNewTableAscends(t *testing.T) {
	table, err := NewTable(wrongLatencies{1, 3, 2, 4, 6, 5, 1, 7}, 8)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{1, 2.5, 2.5, 4, 4, 4, 4, 7} {
		if got := toMs(table.Mean(i + 1)); got != want {
			t.Errorf("batch size %d: mean %v ms, want %v", i+1, got, want)
		}
	}
}

// TestTableExactly: a matcher that is replayed has the same tables, to the last bit, even where
// latencies fell with the batch size.
func TestTableExactly(t *testing.T) {
	table, err := NewTable(wrongLatencies{1.000003, 3.000001, 2.000002, 2.000001, 4}, 5)
	if err != nil {
		t.Fatal(err)
	}
	text := string(table.Append([]byte("table=")))
	again, err := ParseTable(strings.TrimPrefix(text, "table="))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again, table) {
		t.Errorf("%s was written of %+v and is read as %+v", text, table, again)
	}
}

// An event that is parsed and written again must parse to the same.
func FuzzParseEvent(f *testing.F) {
	for _, s := range []string{
		"1.5ms submitted query=1/7 model=rm2 batch=120 waited=1ms time_left=3.5s",
		`0s lane-joined lane=3 agent="host 1" type=x model=a model="b,c" remaining=1ms`,
		"0s profile model=rm2 type=t3.xlarge table=10:3.1ms/3.3ms,20:4.2ms/4.4ms",
		"0s prices type=a per_ms=0.25 service=1ms type=b per_ms=0",
		"-1ns refused query=1/2 attempt=3 lane=4",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		at, e, err := ParseEvent(line)
		if err != nil {
			return
		}
		once := AppendEvent(nil, at, &e)
		at2, e2, err := ParseEvent(once)
		if err != nil {
			t.Fatalf("%q became %q: %v", line, once, err)
		}
		if twice := AppendEvent(nil, at2, &e2); at2 != at || !bytes.Equal(once, twice) {
			t.Fatalf("%q became %q, then %q", line, once, twice)
		}
	})
}

func TestParseEventRefuses(t *testing.T) {
	for _, s := range []string{
		"", "1ms", "x submitted", "1ms walked", "1ms submitted query", "1ms submitted query=1",
		"1ms submitted size=3",
		`1ms submitted model="a`, "1ms profile table=10:1ms", "1ms profile table=10:2ms/1ms",
		"1ms profile table=10:1ms/1ms,5:1ms/1ms",
		"1ms profile table=99999999:1ms/1ms", "1ms prices per_ms=1", "1ms prices type=a per_ms=NaN",
		"1ms lane-lost lane=-1",
	} {
		if _, e, err := ParseEvent([]byte(s)); err == nil {
			t.Errorf("%q: got %+v, want an error", s, e)
		}
	}
}

// BenchmarkStep times a decision on a pool of two types: the mean over arrivals and completions,
// and quantiles, which include some 50 ns for reading the clock.
func BenchmarkStep(b *testing.B) {
	for _, policy := range []string{"kairos", "horizon", "horizon+split"} {
		for _, pool := range []struct {
			base, aux int
			load      float64 // share of the fluid limit
		}{{1, 10, 0.8}, {1, 10, 0.93}, {1, 10, 3}, {100, 1000, 0.9}} {
			b.Run(fmt.Sprintf("%s/lanes=%d/load=%v", policy, pool.base+pool.aux, pool.load),
				func(b *testing.B) {
					policy, splits := strings.CutSuffix(policy, "+split")
					p := newBusyPool(b, policy, pool.base, pool.aux, 0, pool.load)
					p.splits = splits
					p.run(b, 20000)
					// What happens depends on the decisions, so the run is recorded, and only
					// its replay is timed.
					var times []time.Duration
					for b.Loop() {
						b.StopTimer()
						m, err := New(p.m.cfg)
						if err != nil {
							b.Fatal(err)
						}
						for i := range p.log {
							if i == p.setup {
								b.StartTimer()
							}
							start := time.Now()
							if _, _, err := m.Step(epoch.Add(p.log[i].at),
								&p.log[i].event); err != nil {
								b.Fatal(err)
							}
							if i >= p.setup {
								times = append(times, time.Since(start))
							}
						}
					}
					slices.Sort(times)
					b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
					b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
					b.ReportMetric(float64(b.Elapsed())/float64(b.N*(len(p.log)-p.setup)),
						"ns/decision")
				})
		}
	}
}

// TestOnTheWay: a lane that answers has not counted what is on its way there. It is free when it
// has run that, from when it comes there.
func TestOnTheWay(t *testing.T) {
	const ms = time.Millisecond
	m, err := New(Config{
		Models:        []Model{{Name: "m", QoSTarget: time.Second, LargestBatchSize: 1}},
		Policy:        "fcfs",
		DispatchAhead: 4 * ms,
	})
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(fixedLatency(20*ms), 1)
	if err != nil {
		t.Fatal(err)
	}
	mustStep(t, m, 0, Event{Kind: ProfileChanged, Model: "m", Type: "a", Table: table})
	mustStep(t, m, 0, Event{Kind: LaneJoined, Lane: 1, Type: "a", Models: []names.ModelKey{"m"}})
	submit := func(at time.Duration, sequence uint64) []Decision {
		e := Event{Kind: Submitted, Query: QueryID{1, sequence}, Model: "m", BatchSize: 1}
		return mustStep(t, m, at, e)
	}
	if d := submit(0, 1); len(d) != 1 || d[0].Lane != 1 {
		t.Fatalf("got %+v, want the first query assigned", d)
	}
	// Free at 24 ms, so the next one may come from 20 ms on.
	if d := submit(21*ms, 2); len(d) != 1 || d[0].Lane != 1 {
		t.Fatalf("got %+v, want the second query assigned", d)
	}
	// The first ended early, so the lane is idle. The second is there at 25 ms and runs until 45.
	mustStep(t, m, 22*ms, Event{Kind: Completed, Query: QueryID{1, 1}, Attempt: 1, Lane: 1})
	submit(22*ms, 3)
	_, next, err := m.Step(epoch.Add(22*ms), &Event{Kind: TimePassed})
	if want := epoch.Add(41 * ms); err != nil || next.Sub(want).Abs() > time.Microsecond {
		t.Errorf("the lane opens after %v, %v, want 41 ms", next.Sub(epoch), err)
	}
}

// TestIdleLaneFirst: of two lanes that could start a query as soon, the one gets it that is idle,
// for when the other is free is but expected.
func TestIdleLaneFirst(t *testing.T) {
	const ms = time.Millisecond
	m, err := New(Config{
		Models:        []Model{{Name: "m", QoSTarget: 100 * ms, LargestBatchSize: 1}},
		Policy:        "horizon",
		DispatchAhead: 4 * ms,
	})
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(fixedLatency(20*ms), 1)
	if err != nil {
		t.Fatal(err)
	}
	mustStep(t, m, 0, Event{Kind: ProfileChanged, Model: "m", Type: "a", Table: table})
	for lane := range LaneID(2) {
		mustStep(t, m, 0, Event{
			Kind: LaneJoined, Lane: lane + 1, Type: "a", Models: []names.ModelKey{"m"},
		})
	}
	for i, want := range []LaneID{1, 2} {
		e := Event{Kind: Submitted, Query: QueryID{1, uint64(i)}, Model: "m", BatchSize: 1}
		// The first lane is free at 24 ms.
		if d := mustStep(t, m, time.Duration(i)*21*ms, e); len(d) != 1 || d[0].Lane != want {
			t.Errorf("query %d: got %+v, want it assigned to lane %d", i, d, want)
		}
	}
}

// A fixedLatency is the same for all queries.
type fixedLatency time.Duration

func (f fixedLatency) Mean(int) time.Duration              { return time.Duration(f) }
func (f fixedLatency) Quantile(float64, int) time.Duration { return time.Duration(f) }

// TestLostStartsWhenLaneIsFree: a lane that has news while it is open ahead of time, when no lost
// query may start, is looked at again when it is free, though nothing else happens.
func TestLostStartsWhenLaneIsFree(t *testing.T) {
	m, err := New(Config{
		DispatchAhead: 5 * time.Millisecond,
		Models: []Model{
			{Name: "m", QoSTarget: 10 * time.Millisecond, LargestBatchSize: 100},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	mustStep(t, m, 0, Event{
		Kind: ProfileChanged, Model: "m", Type: "x", Table: tableOf(2500, 2500),
	})
	mustStep(t, m, 0, Event{
		Kind: LaneJoined, Lane: 1, Type: "x", Models: []names.ModelKey{"m"}, Remaining: time.Second,
	})
	const at = 300 * time.Millisecond // after so long no time is spare
	mustStep(t, m, at, Event{Kind: LaneRemaining, Lane: 1, Remaining: 4 * time.Millisecond})
	decisions, next, err := m.Step(epoch.Add(at), &Event{
		Kind: Submitted, Query: QueryID{1, 1}, Model: "m", BatchSize: 10,
		Waited: 20 * time.Millisecond,
	})
	if err != nil || len(decisions) > 0 || next.IsZero() {
		t.Fatalf("got %+v, next step at %v, %v; want none now, and to be stepped when the lane is "+
			"free", decisions, next, err)
	}
	all := mustStep(t, m, next.Sub(epoch), Event{Kind: TimePassed})
	if len(all) != 1 || all[0].Action != Assign {
		t.Errorf("when the lane is free: got %+v, want the lost query assigned", all)
	}
}

// TestRunsOfLane: a lane that has a run and another one that follows gets no third one, though the
// query with which the second run began was refused.
func TestRunsOfLane(t *testing.T) {
	const ms = time.Millisecond
	m, err := New(Config{
		DispatchAhead: 5 * ms,
		Models: []Model{
			{Name: "m", QoSTarget: 200 * ms, LargestBatchSize: 8, Merge: names.MergeDeadline},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(fixedLatency(20*ms), 8)
	if err != nil {
		t.Fatal(err)
	}
	mustStep(t, m, 0, Event{Kind: ProfileChanged, Model: "m", Type: "x", Table: table})
	mustStep(t, m, 0, Event{
		Kind: LaneJoined, Lane: 1, Type: "x", Models: []names.ModelKey{"m"}, Remaining: 10 * ms,
	})
	two := func(first uint64, at, opens time.Duration) {
		t.Helper()
		for n := range uint64(2) {
			mustStep(t, m, at, Event{
				Kind: Submitted, Query: QueryID{1, first + n}, Model: "m", BatchSize: 1,
			})
		}
		all := mustStep(t, m, opens+ms/10, Event{Kind: TimePassed})
		if len(all) != 2 || all[1].Merged != 2 {
			t.Fatalf("got %+v, want a run of two queries", all)
		}
	}
	two(1, 0, 5*ms)
	two(3, 20*ms, 25*ms)
	mustStep(t, m, 26*ms, Event{
		Kind: Refused, Query: QueryID{1, 3}, Attempt: 1, Lane: 1, Remaining: 4 * ms,
	})
	mustStep(t, m, 27*ms, Event{Kind: Cancelled, Query: QueryID{1, 3}})
	mustStep(t, m, 28*ms, Event{Kind: LaneRemaining, Lane: 1, Remaining: 4 * ms})
	if all := mustStep(t, m, 29*ms, Event{
		Kind: Submitted, Query: QueryID{1, 5}, Model: "m", BatchSize: 1,
	}); len(all) > 0 {
		t.Errorf("got %+v for a lane that holds %+v", all, m.Holds(nil, 1))
	}
}
