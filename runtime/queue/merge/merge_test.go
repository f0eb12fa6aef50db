package merge_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/runtime/queue/merge/mergetest"
)

const ms = time.Millisecond

// A line is a latency of a fixed part and a part per item; the 80 % quantile is a tenth more.
type line struct{ fixed, perItem time.Duration }

func (l line) Mean(batch int) time.Duration { return l.fixed + time.Duration(batch)*l.perItem }
func (l line) P80(batch int) time.Duration  { return l.Mean(batch) * 11 / 10 }

// due makes items of the given batch sizes and due times.
func items(pairs ...int) (all []merge.Item) {
	for i := 0; i < len(pairs); i += 2 {
		x := merge.Item{Batch: pairs[i], Due: time.Duration(pairs[i+1]) * ms}
		if pairs[i+1] == 0 {
			x.Due = merge.Never
		}
		all = append(all, x)
	}
	return all
}

// other makes the i-th item one of another kind.
func other(all []merge.Item, i int, mean time.Duration) []merge.Item {
	all[i].Other, all[i].Mean, all[i].P80 = true, mean, mean
	return all
}

func TestChoose(t *testing.T) {
	floor := line{10 * ms, ms / 10} // merging pays
	steep := line{ms, 10 * ms}      // it does not
	for _, tt := range []struct {
		name    string
		policy  names.MergePolicy
		latency merge.Latency
		largest int
		waiting []merge.Item
		take    []int
		until   time.Duration // 0: now, which is 0
	}{
		{"one", names.MergeDeadline, floor, 100, items(1, 100), []int{0}, 0},
		{"all", names.MergeDeadline, floor, 100, items(1, 100, 1, 101, 2, 102), []int{0, 1, 2}, 0},
		{"none", names.MergeNone, floor, 100, items(1, 100, 1, 101), []int{0}, 0},
		{"no policy", "", floor, 100, items(1, 100, 1, 101), []int{0}, 0},
		{"no gain", names.MergeDeadline, steep, 100, items(1, 1000, 1, 1000), []int{0}, 0},
		{"no gain for large ones", names.MergeDeadline, floor, 1000, items(400, 900, 400, 900),
			[]int{0}, 0},
		{"a small one beside a large one", names.MergeDeadline, floor, 1000, items(400, 900, 1, 900),
			[]int{0, 1}, 0},
		{"latency unknown", names.MergeDeadline, line{}, 100, items(1, 100, 1, 101), []int{0}, 0},
		{"largest batch", names.MergeDeadline, floor, 3, items(1, 100, 3, 101, 2, 102), []int{0, 2}, 0},
		// 11.11 ms for one item, 11.22 for two, 11.33 for three, by the quantile
		{"the first just in time", names.MergeDeadline, line{10 * ms, 100 * ms / 1000}, 100,
			[]merge.Item{
				{Batch: 1, Due: 11225 * ms / 1000}, {Batch: 1, Due: 50 * ms}, {Batch: 1, Due: 50 * ms},
			}, []int{0, 1}, 0},
		{"one that is late in any case", names.MergeDeadline, floor, 100,
			items(1, 5, 1, 100), []int{0}, 0},
		{"late ones together", names.MergeDeadline, floor, 100, items(1, 0, 1, 0), []int{0, 1}, 0},
		{"another kind is left", names.MergeDeadline, floor, 100,
			other(items(1, 100, 1, 100, 1, 100), 1, 5*ms), []int{0, 2}, 0},
		// the first ends at 10.1 ms, both at 10.2 ms
		{"another kind would become late", names.MergeDeadline, floor, 100,
			other(items(1, 100, 1, 15, 1, 100), 1, 4850*ms/1000), []int{0}, 0},
		{"another kind is late in any case", names.MergeDeadline, floor, 100,
			other(items(1, 100, 1, 15, 1, 100), 1, 5*ms), []int{0, 2}, 0},
	} {
		k := &merge.Kind{Policy: tt.policy, Latency: tt.latency, Largest: tt.largest}
		take, until := k.Choose(0, tt.waiting)
		if !slices.Equal(take, tt.take) || until != tt.until {
			t.Errorf("%s: takes %v, until %v, want %v, %v", tt.name, take, until, tt.take, tt.until)
		}
	}
}

// inTime counts the queries that are in time by the quantile if the runs are made one after the
// other, each query in the order of the list being a run of its own.
func inTime(now time.Duration, l merge.Latency, waiting []merge.Item) (n int) {
	for _, x := range waiting {
		mean, safe := x.Mean, x.P80
		if !x.Other {
			mean, safe = l.Mean(x.Batch), l.P80(x.Batch)
		}
		if now+safe <= x.Due {
			n++
		}
		now += mean
	}
	return n
}

// TestDeadline compares with all subsets. What deadline takes makes no query late that was in time,
// meets each of its conditions, and no query could be added. Among queries of one size no subset
// that meets the conditions has more queries.
func TestDeadline(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 1))
	merged, most := 0, 0
	for range 20000 {
		l := line{time.Duration(r.IntN(20)) * ms, time.Duration(r.IntN(3000)) * time.Microsecond}
		if l.fixed+l.perItem == 0 {
			continue
		}
		now, largest := time.Duration(r.IntN(100))*ms, 1+r.IntN(40)
		alike := r.IntN(2) == 0
		waiting := make([]merge.Item, 1+r.IntN(8))
		for i := range waiting {
			x := &waiting[i]
			x.Batch, x.Due = 1, now+time.Duration(r.IntN(120))*ms
			if !alike {
				x.Batch = 1 + r.IntN(min(10, largest))
				if x.Other = i > 0 && r.IntN(4) == 0; x.Other {
					x.Mean = time.Duration(1+r.IntN(20)) * ms
					x.P80 = x.Mean
				}
			}
		}
		order := waiting
		if !alike { // the first may be due later than others: the matcher's choice may be
			order = waiting[1:]
		}
		slices.SortStableFunc(order, func(a, b merge.Item) int { return int(a.Due - b.Due) })
		k := &merge.Kind{Policy: names.MergeDeadline, Latency: l, Largest: largest}
		take, until := k.Choose(now, waiting)
		if until != now || len(take) == 0 || take[0] != 0 || !slices.IsSorted(take) {
			t.Fatalf("takes %v until %v at %v", take, until, now)
		}
		if !meets(now, l, largest, waiting, take) {
			t.Fatalf("%v at %v, largest %d, %+v: takes %v, which breaks a condition", l, now, largest,
				waiting, take)
		}
		best := 0
		for set := 1; set < 1<<len(waiting); set += 2 {
			var subset []int
			for i := range waiting {
				if set>>i&1 == 1 {
					subset = append(subset, i)
				}
			}
			if meets(now, l, largest, waiting, subset) {
				best = max(best, len(subset))
			}
		}
		if alike && best > len(take) {
			t.Fatalf("%v at %v, largest %d, %+v: takes %v, %d could run", l, now, largest, waiting,
				take, best)
		}
		if len(take) > 1 {
			merged++
		}
		if best == len(take) {
			most++
		}
	}
	if merged < 1000 {
		t.Errorf("only %d of 20000 cases merge", merged)
	}
	if most < 19000 {
		t.Errorf("in only %d of 20000 cases no larger set could run", most)
	}
}

// meets reports whether running the taken queries together meets deadline's conditions.
func meets(now time.Duration, l line, largest int, waiting []merge.Item, take []int) bool {
	sum := waiting[0].Batch
	for _, i := range take[1:] {
		x := waiting[i]
		if x.Other || sum+x.Batch > largest ||
			float64(l.Mean(sum+x.Batch)) >= merge.Gain*float64(l.Mean(sum)+l.Mean(x.Batch)) {
			return false
		}
		sum += x.Batch
	}
	if len(take) == 1 {
		return true
	}
	end := now + l.Mean(sum)
	var rest []merge.Item
	for i, x := range waiting {
		if slices.Contains(take, i) {
			if now+l.P80(sum) > x.Due {
				return false
			}
		} else {
			rest = append(rest, x)
		}
	}
	// Of those that wait, none that was in time is late.
	return inTime(end, l, rest)+len(take) >= inTime(now, l, waiting)
}

// A query is a query in a queue.
type query struct {
	queue.Place
	name  string
	kind  *merge.Kind
	group *merge.Group
	batch int
}

func (q *query) Merging() (*merge.Kind, int, *merge.Group) { return q.kind, q.batch, q.group }

func TestTake(t *testing.T) {
	var q queue.Queue[*query]
	var taker merge.Taker[*query]
	a := &merge.Kind{Policy: names.MergeDeadline, Latency: line{10 * ms, 0}, Largest: 100}
	b := &merge.Kind{Policy: names.MergeDeadline, Rule: &mergetest.Patient{}, Latency: line{10 * ms, 0}, Largest: 100}
	push := func(name string, k *merge.Kind, due time.Duration) {
		x := &query{name: name, kind: k, batch: 1}
		x.Estimate = 10 * ms
		if x.LatestStart = due - x.Estimate; due == merge.Never {
			x.LatestStart = queue.NoTarget
		}
		x.Background = name == "background"
		q.Push(x, 0)
		if k != nil {
			k.Enter(1, 10*ms)
		}
	}
	want := func(now time.Duration, want string, until time.Duration) {
		t.Helper()
		run, at := taker.Take(&q, now)
		got := ""
		for _, x := range run {
			got += x.name + " "
			if x.kind != nil {
				x.kind.Leave(1, 10*ms)
			}
		}
		if got != want || len(run) == 0 && at != until {
			t.Errorf("at %v runs %q, until %v, want %q, %v", now, got, at, want, until)
		}
	}
	want(0, "", merge.Never)
	push("b1", b, 50*ms)
	want(0, "", 28*ms) // 50 ms less twice the quantile
	push("a1", a, 60*ms)
	push("alone", nil, 70*ms)
	push("b2", b, 80*ms)
	push("a2", a, 90*ms)
	push("late", a, merge.Never)
	push("background", nil, 20*ms)
	want(0, "a1 a2 ", 0) // b waits, a need not
	want(0, "alone ", 0)
	want(0, "", 28*ms)
	want(28*ms, "b1 b2 ", 0)
	want(28*ms, "late ", 0)
	want(28*ms, "background ", 0)
	want(28*ms, "", merge.Never)
}

// TestGroup: a lane waits for the queries of a group for 2 ms at most and a quarter of their slack,
// and then runs what is there; those that come later run on their own.
func TestGroup(t *testing.T) {
	flat := func() *merge.Kind {
		return &merge.Kind{Policy: names.MergeDeadline, Latency: line{10 * ms, 0}, Largest: 100}
	}
	type arrival struct {
		at, due time.Duration
		name    string
		group   int // 0: none
		kind    *merge.Kind
	}
	kind, other := flat(), flat()
	steep := &merge.Kind{Policy: names.MergeDeadline, Latency: line{0, 10 * ms}, Largest: 100}
	for _, tt := range []struct {
		name     string
		arrivals []arrival
		want     []string // runs, of 10 ms each, with their starts
	}{
		{"all come", []arrival{
			{0, 90 * ms, "a", 3, kind}, {ms / 2, 80 * ms, "b", 3, kind}, {ms, 95 * ms, "c", 3, kind},
		}, []string{"1ms b a c"}},
		{"one never comes", []arrival{{0, 90 * ms, "a", 3, kind}, {ms, 80 * ms, "b", 3, kind}},
			[]string{"2ms b a"}},
		{"one comes too late", []arrival{
			{0, 90 * ms, "a", 3, kind}, {ms, 80 * ms, "b", 3, kind}, {3 * ms, 85 * ms, "c", 3, kind},
		}, []string{"2ms b a", "12ms c"}},
		{"one comes when the others are gone", []arrival{
			{0, 90 * ms, "a", 2, kind}, {30 * ms, 85 * ms, "b", 2, kind},
		}, []string{"2ms a", "32ms b"}},
		{"little time", []arrival{{0, 12 * ms, "a", 2, kind}, {ms, 80 * ms, "b", 2, kind}},
			[]string{"500µs a", "10.5ms b"}},
		{"the later one has little time", []arrival{
			{0, 90 * ms, "a", 3, kind}, {ms, 13 * ms, "b", 3, kind},
		}, []string{"1.5ms b a"}},
		{"late", []arrival{{0, 9 * ms, "a", 2, kind}, {ms, 80 * ms, "b", 2, kind}},
			[]string{"0s a", "10ms b"}},
		{"no target", []arrival{{0, 0, "a", 2, kind}}, []string{"0s a"}},
		{"nothing passes them", []arrival{{0, 50 * ms, "a", 2, kind}, {ms, 90 * ms, "x", 0, other}},
			[]string{"2ms a", "12ms x"}},
		{"what is more urgent does", []arrival{
			{0, 50 * ms, "a", 2, kind}, {ms, 40 * ms, "x", 0, kind}, {3 * ms / 2, 50 * ms, "b", 2, kind},
		}, []string{"1ms x", "11ms a b"}},
		{"together though the policy would not", []arrival{
			{0, 50 * ms, "a", 2, steep}, {ms, 50 * ms, "b", 2, steep},
		}, []string{"1ms a b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var q queue.Queue[*query]
			var taker merge.Taker[*query]
			var groups merge.Groups
			var got []string
			var ran []*query
			arrivals, now, free := tt.arrivals, time.Duration(0), time.Duration(0)
			for {
				until := merge.Never
				if now >= free {
					for _, x := range ran {
						groups.Leave(x.group)
					}
					var run []*query
					if run, until = taker.Take(&q, now); len(run) > 0 {
						at := now.String()
						for _, x := range run {
							at += " " + x.name
							x.kind.Leave(1, 10*ms)
						}
						got, free, until = append(got, at), now+10*ms, now+10*ms
					}
					ran = slices.Clone(run)
				} else {
					until = free
				}
				if len(arrivals) > 0 && arrivals[0].at <= until {
					x := arrivals[0]
					arrivals, now = arrivals[1:], x.at
					wait := &query{name: x.name, kind: x.kind, batch: 1}
					wait.Estimate = 10 * ms
					wait.LatestStart = queue.LatestStart(0, x.due, wait.Estimate)
					wait.group = groups.Arrive(merge.GroupID{
						Number: min(1, uint64(x.group)), Queries: x.group,
					}, now, wait.LatestStart)
					q.Push(wait, now)
					x.kind.Enter(1, wait.Estimate)
					continue
				}
				if until == merge.Never {
					break
				}
				now = until
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestGroupsEnd: a group is forgotten with the last of its queries that have come.
func TestGroupsEnd(t *testing.T) {
	var groups merge.Groups
	id := merge.GroupID{Number: 7, Queries: 3}
	a, b := groups.Arrive(id, 0, ms), groups.Arrive(id, 0, ms)
	if a == nil || a != b {
		t.Fatalf("two of a group got %p and %p", a, b)
	}
	groups.Leave(a)
	if groups.Arrive(id, 0, ms) != b {
		t.Error("the third has another group, although the second is there")
	}
	groups.Leave(b)
	groups.Leave(b)
	if c := groups.Arrive(id, 0, ms); c == b {
		t.Error("the group outlives its queries")
	}
	for _, id := range []merge.GroupID{{}, {Number: 1, Queries: 1}, {Queries: 5}} {
		if g := groups.Arrive(id, 0, ms); g != nil {
			t.Errorf("%+v is a group", id)
		}
	}
	groups.Leave(nil)
}

func TestSaved(t *testing.T) {
	k := &merge.Kind{Policy: names.MergeDeadline, Latency: line{10 * ms, ms}, Largest: 10}
	for i := range 20 {
		want := time.Duration(0)
		if i > 1 {
			merged := 10*ms + time.Duration(min(i, 10))*ms
			if i > 10 {
				merged = merged * time.Duration(i) / 10
			}
			want = time.Duration(i)*11*ms - merged
		}
		if got := k.Saved(); got != want {
			t.Errorf("%d queries: saved %v, want %v", i, got, want)
		}
		k.Enter(1, 11*ms)
	}
	for range 20 {
		k.Leave(1, 11*ms)
	}
	if k.Saved() != 0 {
		t.Errorf("saves %v when nothing waits", k.Saved())
	}
	k.Latency = line{0, ms}
	k.Enter(1, ms)
	k.Enter(1, ms)
	if k.Saved() != 0 {
		t.Errorf("saves %v where latency is in proportion to the items", k.Saved())
	}
}

func ExampleKind_Choose() {
	wnd := &merge.Kind{Policy: names.MergeDeadline, Latency: line{2 * ms, ms / 20}, Largest: 1000}
	take, _ := wnd.Choose(0, []merge.Item{
		{Batch: 1, Due: 20 * ms}, {Batch: 4, Due: 21 * ms}, {Batch: 800, Due: 22 * ms},
		{Batch: 2, Due: 23 * ms},
	})
	fmt.Println(take)
	// Output: [0 1 3]
}

// TestChooseAllocations: a choice allocates nothing once it has run.
func TestChooseAllocations(t *testing.T) {
	k := &merge.Kind{Policy: names.MergeDeadline, Latency: line{10 * ms, 0}, Largest: 1000}
	waiting := items(slices.Repeat([]int{1, 100}, 100)...)
	if n := testing.AllocsPerRun(100, func() { k.Choose(0, waiting) }); n > 0 {
		t.Errorf("a choice allocates %v times", n)
	}
}

func BenchmarkTake(b *testing.B) {
	var q queue.Queue[*query]
	var taker merge.Taker[*query]
	k := &merge.Kind{Policy: names.MergeDeadline, Latency: line{10 * ms, 0}, Largest: 1000}
	all := make([]*query, 64)
	for i := range all {
		all[i] = &query{kind: k, batch: 1}
		all[i].LatestStart = time.Duration(100+i) * ms
	}
	for b.Loop() {
		for _, x := range all {
			q.Push(x, 0)
			k.Enter(1, 0)
		}
		run, _ := taker.Take(&q, 0)
		for range run {
			k.Leave(1, 0)
		}
		if len(run) != len(all) {
			b.Fatal(len(run))
		}
	}
}
