package match

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// exact is a latency of so many µs for each item, without noise.
type exact int

func (l exact) Mean(batchSize int) time.Duration {
	return time.Duration(int(l)*batchSize) * time.Microsecond
}

func (l exact) Quantile(_ float64, batchSize int) time.Duration { return l.Mean(batchSize) }

// A job is a query of a burst: it takes takes, and is in time if it ends at most due after the
// burst's lanes become free.
type job struct {
	model      int // of the burst's
	takes, due time.Duration
}

// A burst is of queries that wait when all lanes of a pool become free at once. All latencies are
// known and exact, so the best schedule can be found by trying all.
type burst struct {
	lanes   int
	targets []time.Duration // by model
	jobs    []job
}

// item is the latency of one item, the unit of all times of a burst.
const item = 100 * time.Microsecond

// run plays the burst to a matcher, which is told of the queries in the given order, and returns
// which are in time.
func (b *burst) run(t testing.TB, policy string, order []int) []bool {
	t.Helper()
	const blocker = "blocker"
	cfg := Config{Policy: policy, Models: []Model{
		{Name: blocker, QoSTarget: time.Hour, LargestBatchSize: 1},
	}}
	most, sum := 1, time.Duration(0)
	for _, j := range b.jobs {
		most, sum = max(most, int(j.takes/item)), sum+j.takes
	}
	var held []names.ModelKey
	for i, target := range b.targets {
		name := names.ModelKey(fmt.Sprintf("m%d", i))
		cfg.Models = append(cfg.Models, Model{
			Name: name, QoSTarget: target, LargestBatchSize: most,
		})
		held = append(held, name)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	now, ends := time.Duration(0), make(map[LaneID]time.Duration) // of what runs
	runs, inTime := make(map[LaneID]Decision), make([]bool, len(b.jobs))
	step := func(e Event) {
		for _, d := range mustStep(t, m, now, e) {
			if d.Action == Assign {
				runs[d.Lane], ends[d.Lane] = d, now+d.Wait+d.Latency
			}
		}
	}
	held = append(held, blocker)
	for _, model := range cfg.Models {
		table, err := NewTable(exact(item/time.Microsecond), model.LargestBatchSize)
		if err != nil {
			t.Fatal(err)
		}
		step(Event{Kind: ProfileChanged, Model: model.Name, Type: "x", Table: table})
	}
	step(Event{Kind: PricesChanged, Prices: []fluid.Price{
		{Type: "x", PerMs: 1, Service: sum / time.Duration(len(b.jobs))},
	}})
	for i := range b.lanes {
		step(Event{Kind: LaneJoined, Lane: LaneID(i), Agent: "a", Type: "x", Models: held})
		step(Event{Kind: Submitted, Query: QueryID{2, uint64(i)}, Model: blocker, BatchSize: 1})
	}
	if len(runs) != b.lanes {
		t.Fatalf("%d of %d lanes run the first queries", len(runs), b.lanes)
	}
	free := item
	now = free / 2
	for _, i := range order {
		j := &b.jobs[i]
		step(Event{
			Kind: Submitted, Query: QueryID{1, uint64(i)}, Model: held[j.model],
			BatchSize: int(j.takes / item),
			Waited:    b.targets[j.model] - j.due - item/100 - (free - now),
		})
	}
	for len(runs) > 0 {
		next := LaneID(b.lanes)
		for id := range next {
			if _, ok := runs[id]; ok && (next == LaneID(b.lanes) || ends[id] < ends[next]) {
				next = id
			}
		}
		d := runs[next]
		now = ends[next]
		if d.Query.Gateway == 1 {
			i := d.Query.Sequence
			inTime[i] = now <= free+b.jobs[i].due+item/100
		}
		delete(runs, next)
		step(Event{Kind: Completed, Query: d.Query, Attempt: d.Attempt, Lane: next})
	}
	if n, _ := m.Waiting(); n > 0 {
		t.Fatalf("%d queries wait beside idle lanes", n)
	}
	return inTime
}

// best is the most queries of the burst that any schedule has in time.
func (b *burst) best() int {
	jobs := slices.Clone(b.jobs)
	slices.SortFunc(jobs, func(x, y job) int { return cmp.Compare(x.due, y.due) })
	free := make([]time.Duration, b.lanes)
	var try func(jobs []job) int
	try = func(jobs []job) int {
		if len(jobs) == 0 {
			return 0
		}
		j, most := jobs[0], 0
		for k, at := range free {
			if slices.Index(free, at) == k && at+j.takes <= j.due {
				free[k] += j.takes
				most = max(most, 1+try(jobs[1:]))
				free[k] = at
			}
			if most == len(jobs) {
				return most
			}
		}
		return max(most, try(jobs[1:]))
	}
	return try(jobs)
}

// TestBurst: of bursts at identical lanes horizon has nearly as many queries in time as the best of
// all schedules, and who is in time does not depend on the order in which the queries were
// submitted. A query that starts first and makes a planned one late, or is overtaken and becomes
// late itself, costs a burst one query; horizon without the check of its plan (fits) has 1 to 4 %
// fewer in time.
func TestBurst(t *testing.T) {
	for _, tt := range []struct {
		lanes, jobs, models int
		minRatio            float64 // of the queries that the best schedules have in time
	}{
		{1, 2, 1, .99}, {1, 2, 2, .99}, {1, 3, 1, .98},
		{2, 4, 1, .991}, {2, 4, 2, .991}, {3, 6, 2, .988}, {2, 6, 2, .961},
	} {
		name := fmt.Sprintf("%d queries for %d models on %d lanes", tt.jobs, tt.models, tt.lanes)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, best := 0, 0
			for seed := range uint64(1500) {
				r := rand.New(rand.NewPCG(seed, 9))
				b := &burst{lanes: tt.lanes}
				for range tt.models {
					b.targets = append(b.targets, time.Duration(130+r.IntN(300))*item)
				}
				for range tt.jobs {
					j := job{model: r.IntN(tt.models), takes: time.Duration(1+r.IntN(60)) * item}
					j.due = j.takes + time.Duration(r.IntN(60))*item
					b.jobs = append(b.jobs, j)
				}
				inTime := b.run(t, "horizon", r.Perm(tt.jobs))
				if other := b.run(t, "horizon", r.Perm(tt.jobs)); !slices.Equal(other, inTime) {
					t.Errorf("seed %d: in time are %v, submitted in another order %v", seed,
						inTime, other)
				}
				for _, ok := range inTime {
					if ok {
						got++
					}
				}
				best += b.best()
			}
			t.Logf("%.4f of what the best schedules have in time", float64(got)/float64(best))
			if float64(got) < tt.minRatio*float64(best) {
				t.Errorf("%d queries are in time, by the best schedules %d: %.4f, want at least %v",
					got, best, float64(got)/float64(best), tt.minRatio)
			}
		})
	}
}

// TestBurstOfEqualQueries: a burst for one model, of which all queries take equally long, is in
// time if any schedule has it in time: that by due times does, and horizon, however long the burst
// is.
func TestBurstOfEqualQueries(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 10))
		b := &burst{lanes: 1 + r.IntN(4), targets: []time.Duration{1000 * item}}
		takes := 1 + r.IntN(20)
		for i := range b.lanes * (1 + r.IntN(8)) {
			slack := r.IntN(1 + r.IntN(2*takes))
			b.jobs = append(b.jobs, job{
				takes: time.Duration(takes) * item,
				due:   time.Duration((i/b.lanes+1)*takes+slack) * item,
			})
		}
		if inTime := b.run(t, "horizon", r.Perm(len(b.jobs))); slices.Contains(inTime, false) {
			t.Errorf("seed %d: of %+v in time are %v, want all", seed, b, inTime)
		}
	}
}
