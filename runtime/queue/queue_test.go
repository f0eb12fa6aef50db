package queue_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-serve/muster/runtime/queue"
)

type query struct {
	queue.Place
	name     int
	pushed   time.Duration
	hastened bool
}

// priority is where a query that waits stands.
func (w *query) priority(now time.Duration) int {
	switch {
	case w.hastened, w.Background && w.pushed+queue.BackgroundWait < now:
		return -1
	case w.Background:
		return 2
	case w.LatestStart < now:
		return 1
	}
	return 0
}

// order compares a queue with the plain definition of its order, for any sequence of pushes,
// removals and pops.
func order(t *rapid.T) {
	var q, other queue.Queue[*query]
	var waiting []*query // in order of arrival
	now := rapid.SampledFrom([]time.Duration{-1 << 40, 0, 1 << 40}).Draw(t, "origin")
	// next is the definition.
	next := func() *query {
		if len(waiting) == 0 {
			return nil
		}
		return slices.MinFunc(waiting, func(a, b *query) int { // the first of equals
			if c := cmp.Compare(a.priority(now), b.priority(now)); c != 0 || a.priority(now) != 0 {
				return c
			}
			return cmp.Compare(a.LatestStart+a.Estimate, b.LatestStart+b.Estimate)
		})
	}
	take := func(w *query) {
		waiting = slices.DeleteFunc(waiting, func(x *query) bool { return x == w })
		if w.Waits() {
			t.Fatalf("query %d waits though it is out", w.name)
		}
		if q.Remove(w) {
			t.Fatalf("query %d is taken out twice", w.name)
		}
		if rapid.IntRange(0, 4).Draw(t, "wait elsewhere") == 0 {
			other.Push(w, now)
			if q.Remove(w) {
				t.Fatalf("query %d is taken out of a queue in which it does not wait", w.name)
			}
		}
	}
	for i := range rapid.IntRange(0, 60).Draw(t, "steps") {
		now += time.Duration(rapid.IntRange(0, 3).Draw(t, "passed"))
		if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
			now += queue.BackgroundWait
		}
		switch rapid.IntRange(0, 5).Draw(t, "what") {
		case 0, 1:
			w := &query{name: i, pushed: now, Place: queue.Place{
				LatestStart: now + time.Duration(rapid.IntRange(-5, 20).Draw(t, "slack")),
				Background:  rapid.IntRange(0, 9).Draw(t, "background") == 0,
				Bytes:       rapid.Int64Range(0, 9).Draw(t, "bytes"),
				Estimate:    time.Duration(rapid.Int64Range(0, 9).Draw(t, "estimate")),
			}}
			if rapid.IntRange(0, 9).Draw(t, "no target") == 0 {
				w.LatestStart = queue.NoTarget
			}
			q.Push(w, now)
			if !w.Waits() {
				t.Fatalf("query %d does not wait", w.name)
			}
			waiting = append(waiting, w)
		case 2:
			want := next()
			got, ok := q.Pop(now)
			if got != want || ok != (want != nil) {
				t.Fatalf("pop at %d: got %+v, want %+v", now, got, want)
			}
			if ok {
				take(want)
			}
		case 3:
			if len(waiting) > 0 {
				w := rapid.SampledFrom(waiting).Draw(t, "remove")
				if other.Remove(w) {
					t.Fatalf("query %d is taken out of a queue in which it does not wait", w.name)
				}
				if !q.Remove(w) {
					t.Fatalf("query %d waits, but is not taken out", w.name)
				}
				take(w)
			}
		case 4:
			if len(waiting) > 0 {
				w := rapid.SampledFrom(waiting).Draw(t, "estimate anew")
				q.Remove(w)
				longer := time.Duration(rapid.Int64Range(0, 9).Draw(t, "longer"))
				w.Estimate += longer
				if w.LatestStart != queue.NoTarget {
					w.LatestStart -= longer
				}
				w.hastened = false
				q.PushAgain(w, now)
			}
		case 5:
			if w := next(); w != nil {
				want := w.priority(now) == 1 && w.pushed+queue.BackgroundWait < now
				if q.First(nil, now, 1); q.Hasten(w, now) != want {
					t.Fatalf("query %d goes first: %v, want %v", w.name, !want, want)
				}
				w.hastened = w.hastened || want
			}
		}
		n, bytes, estimate := 0, int64(0), time.Duration(0)
		for _, w := range waiting {
			if !w.Background {
				n++
				bytes += w.Bytes
				estimate += w.Estimate
			}
		}
		if q.Len() != n || q.Bytes() != bytes || q.Estimate() != estimate {
			t.Fatalf("queue has %d queries of %d bytes that take %d, want %d of %d that take %d",
				q.Len(), q.Bytes(), q.Estimate(), n, bytes, estimate)
		}
	}
}

func TestOrder(t *testing.T) { rapid.Check(t, order) }

// TestJackson: if queries that wait meet their QoS targets in any order, they do in the queue's.
func TestJackson(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*query
		for i := range rapid.IntRange(1, 6).Draw(t, "queries") {
			w := &query{name: i}
			w.Estimate = time.Duration(rapid.IntRange(1, 10).Draw(t, "estimate"))
			w.LatestStart = time.Duration(rapid.IntRange(0, 40).Draw(t, "latest start"))
			all = append(all, w)
		}
		// inTime says whether all meet their targets in some order, the first n in that given.
		var inTime func(n int, start time.Duration) bool
		inTime = func(n int, start time.Duration) bool {
			if n == len(all) {
				return true
			}
			for i := n; i < len(all); i++ {
				all[n], all[i] = all[i], all[n]
				ok := start <= all[n].LatestStart && inTime(n+1, start+all[n].Estimate)
				all[n], all[i] = all[i], all[n]
				if ok {
					return true
				}
			}
			return false
		}
		if !inTime(0, 0) {
			return
		}
		var q queue.Queue[*query]
		for _, w := range all {
			q.Push(w, 0)
		}
		now := time.Duration(0)
		for w, ok := q.Pop(now); ok; w, ok = q.Pop(now) {
			if now > w.LatestStart {
				t.Fatalf("query %d starts at %d, its latest start is %d", w.name, now,
					w.LatestStart)
			}
			now += w.Estimate
		}
	})
}

func FuzzOrder(f *testing.F) { f.Fuzz(rapid.MakeFuzz(order)) }

func TestLatestStart(t *testing.T) {
	for _, tt := range []struct{ arrival, target, estimate, want time.Duration }{
		{10, 5, 2, 13},
		{-10, 5, 20, -25},
		{10, 0, 2, queue.NoTarget},
		{10, -1, 2, queue.NoTarget},
	} {
		if got := queue.LatestStart(tt.arrival, tt.target, tt.estimate); got != tt.want {
			t.Errorf("arrival %d, target %d, estimate %d: got %d, want %d", tt.arrival, tt.target,
				tt.estimate, got, tt.want)
		}
	}
}

func TestPushedTwice(t *testing.T) {
	var q, other queue.Queue[*query]
	w := &query{}
	q.Push(w, 0)
	for _, to := range []*queue.Queue[*query]{&q, &other} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a query that waits already is pushed, and there is no panic")
				}
			}()
			to.Push(w, 0)
		}()
	}
	if q.Len() != 1 || other.Len() != 0 {
		t.Errorf("%d and %d wait, want 1 and 0", q.Len(), other.Len())
	}
}

// TestAllocations: a queue that has been as long before allocates nothing.
func TestAllocations(t *testing.T) {
	var q queue.Queue[*query]
	var all [100]query
	now := time.Duration(0)
	if n := testing.AllocsPerRun(100, func() { cycle(&q, all[:], &now) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// cycle has all wait and takes them out, half of them late.
func cycle(q *queue.Queue[*query], all []query, now *time.Duration) {
	for i := range all {
		all[i].LatestStart = *now + time.Duration(i*7%len(all))
		q.Push(&all[i], *now)
	}
	*now += time.Duration(len(all) / 2)
	for _, ok := q.Pop(*now); ok; _, ok = q.Pop(*now) {
	}
}

func BenchmarkQueue(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(map[int]string{1: "1", 1000: "1000"}[n], func(b *testing.B) {
			var q queue.Queue[*query]
			all := make([]query, n)
			for i := range all {
				all[i].LatestStart = time.Duration(rand.IntN(1000))
				if i > 0 {
					q.Push(&all[i], 0)
				}
			}
			w := &all[0]
			b.ReportAllocs()
			for b.Loop() {
				q.Push(w, 0)
				w, _ = q.Pop(0)
				w.LatestStart = time.Duration(rand.IntN(1000))
			}
		})
	}
}

// TestFirst: First lists what Pop returns next, in order, as far as it is of one class.
func TestFirst(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 2))
	for range 2000 {
		var q queue.Queue[*query]
		now := time.Duration(0)
		for range r.IntN(40) {
			x := &query{pushed: now}
			x.Estimate = time.Duration(1 + r.IntN(5))
			x.LatestStart = queue.NoTarget
			if r.IntN(3) > 0 {
				x.LatestStart = now + time.Duration(r.IntN(30))
			}
			x.Background = r.IntN(5) == 0
			q.Push(x, now)
			now += time.Duration(r.IntN(2))
			if r.IntN(20) == 0 {
				now += queue.BackgroundWait
			}
		}
		most := r.IntN(30)
		first := q.First(nil, now, most)
		if len(first) > most {
			t.Fatalf("%d are first, want at most %d", len(first), most)
		}
		before := q.Len()
		for i, x := range first {
			if next, ok := q.Pop(now); !ok || next != x {
				t.Fatalf("query %d of the first %d is not the next that Pop returns", i, len(first))
			}
		}
		next, ok := q.Pop(now)
		if ok && len(first) < most && (len(first) == 0 ||
			next.priority(now) == first[0].priority(now)) {
			t.Fatalf("First leaves out a query of the class of the first; %d waited", before)
		}
	}
}

// TestSpare: the share of spare time is the moving average that it says, by small steps.
func TestSpare(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 3))
	for range 200 {
		var s queue.Spare
		const over = 1000
		now, held, want := time.Duration(r.IntN(100)), 0., 1.
		s.Note(now, over, 0)
		for range 20 {
			passed := r.IntN(500)
			for range passed { // each step moves the average a thousandth of the way
				want += (1 - held - want) * -math.Expm1(-1./over)
			}
			now += time.Duration(passed)
			if got := s.Share(now, over); math.Abs(got-want) > 1e-9 {
				t.Fatalf("at %d: got %v, want %v", now, got, want)
			}
			held = float64(r.IntN(5)) / 4
			if r.IntN(5) == 0 {
				s.Restart(now, held)
				want = 1
				continue
			}
			s.Note(now, over, held)
		}
	}
}

// TestWaitingWork: Before and Late say what a look at all queries that wait says.
func TestWaitingWork(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 4))
	for range 2000 {
		var q queue.Queue[*query]
		var all []*query
		now := time.Duration(0)
		for range r.IntN(30) {
			x := &query{}
			x.Estimate = time.Duration(1 + r.IntN(5))
			x.LatestStart = now + time.Duration(r.IntN(30)-5)
			x.Background = r.IntN(5) == 0
			q.Push(x, now)
			all = append(all, x)
			now += time.Duration(r.IntN(3))
		}
		due := now + time.Duration(r.IntN(40))
		var before, work time.Duration
		var late []*query
		for _, x := range all { // in order of arrival
			switch {
			case x.Background:
			case x.LatestStart < now:
				late = append(late, x)
				work += x.Estimate
			case x.LatestStart+x.Estimate <= due:
				before += x.Estimate
			}
		}
		if got := q.Before(due, now); got != before {
			t.Fatalf("before %d: got %d, want %d", due, got, before)
		}
		first, last, got, ok := q.Late(now)
		if ok != (len(late) > 0) || got != work ||
			ok && (first != late[0] || last != late[len(late)-1]) {
			t.Fatalf("late: got %v, %v, %d, %v, want the ends of %v", first, last, got, ok, late)
		}
	}
}
