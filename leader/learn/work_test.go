package learn

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/work"
)

// workWorld is a world with two types of members, where a value takes as long as half a row on both,
// and the second type takes twice as long.
type workWorld struct {
	*world
	a, b *leader.Member
}

func newWorkWorld(t *testing.T) *workWorld {
	w := &workWorld{newWorld(t, 1), member("a", "x", "", m), member("b", "y", "", m)}
	w.are(w.a, w.b)
	return w
}

// took is how long a run takes on a member of type x.
func took(rows, values int) time.Duration {
	return time.Duration(1e6 + 2e4*(float64(rows)+float64(values)/2))
}

// serve has n queries of random rows and values run on both types.
func (w *workWorld) serve(n int, slower time.Duration) {
	for range n {
		rows, values := 1+w.random.IntN(40), w.random.IntN(100)
		for i, on := range []*leader.Member{w.a, w.b} {
			noise := time.Duration(w.random.IntN(1e4))
			w.seen.Observations = append(w.seen.Observations, Observation{
				Member: on, Model: m, BatchSize: rows, Users: 1, Values: values, At: w.now,
				Execution: time.Duration(i+1)*slower*took(rows, values) + noise,
			})
		}
		w.now = w.now.Add(20 * time.Millisecond)
		w.look()
	}
}

func (w *workWorld) told(typ names.LaneType) *leader.Latency {
	return w.advised[names.TableKey{Model: m.Key(), Type: typ}]
}

// TestLearnsWork: the law and profiles by it are learned from runs that differ in their values, told
// of all types at once, beside what older agents read; the book keeps rows alone.
func TestLearnsWork(t *testing.T) {
	w := newWorkWorld(t)
	w.serve(40, 1)
	if l := w.told("x"); l == nil || l.Law != (work.Law{}) || l.ToldWork != nil {
		t.Fatalf("after few runs this is told: %+v, want rows alone", l)
	}
	w.serve(200, 1)
	x, y := w.told("x"), w.told("y")
	if math.Abs(x.Law.PerValue-.5) > .03 || x.Law.PerUser != 0 || x.Law != y.Law {
		t.Errorf("the laws are %+v and %+v, want half a row a value", x.Law, y.Law)
	}
	for _, c := range []struct{ rows, values int }{{10, 0}, {10, 90}, {40, 40}, {30, 80}} {
		size := x.Law.Size(c.rows, 1, c.values)
		for i, l := range []*leader.Latency{x, y} {
			want := time.Duration(i+1) * took(c.rows, c.values)
			if got := l.Table.Mean(size); math.Abs(float64(got)/float64(want)-1) > .03 {
				t.Errorf("type %d: %v take %v, want %v", i, c, got, want)
			}
		}
	}
	var byRows, byWork profiles.Table
	if err := json.Unmarshal(x.Told, &byRows); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(x.ToldWork, &byWork); err != nil {
		t.Fatal(err)
	}
	// 20 rows have 49.5 values in the mean.
	if got, want := byRows.Mean(20), took(20, 50); math.Abs(float64(got)/float64(want)-1) > .1 {
		t.Errorf("older agents are told that 20 rows take %v, want %v", got, want)
	}
	if got, want := byWork.Mean(20), took(20, 0); math.Abs(float64(got)/float64(want)-1) > .05 {
		t.Errorf("agents are told that the work of 20 rows takes %v, want %v", got, want)
	}
	key := w.a.Models[0].Profile
	if got := w.book.Table(key).Mean(20); math.Abs(float64(got)/float64(byRows.Mean(20))-1) > .02 {
		t.Errorf("the book says that 20 rows take %v, want %v", got, byRows.Mean(20))
	}
	if got := w.ByWork(key, w.book.Table(key)).Mean(20); got != byWork.Mean(20) {
		t.Errorf("plans take %v for the work of 20 rows, want %v", got, byWork.Mean(20))
	}

	// The next leader begins with it.
	next := newWorkWorld(t)
	next.Suggest([]*leader.Member{w.a, w.b}, []leader.Latency{*x, *y})
	next.look()
	if l := next.told("x"); l == nil || l.Law != x.Law || l.Profile.Mean(20) != byWork.Mean(20) {
		t.Errorf("the next leader tells %+v, want the law %v and the same profile", l, x.Law)
	}
	next.serve(40, 1)
	if l := next.told("x"); l.Law != x.Law {
		t.Errorf("after few runs the next leader has the law %v, want %v still", l.Law, x.Law)
	}
}

// TestSavesWork: a fleet of which all agents restart goes on with the law and the profiles by it.
func TestSavesWork(t *testing.T) {
	w := newWorkWorld(t)
	if data, err := w.MarshalWorks(); data != nil || err != nil {
		t.Errorf("without a law %s is saved, %v, want nothing", data, err)
	}
	w.serve(240, 1)
	data, err := w.MarshalWorks()
	if err != nil {
		t.Fatal(err)
	}
	x := w.told("x")
	next := newWorkWorld(t)
	next.Suggest([]*leader.Member{w.a, w.b}, nil)
	if err := next.RestoreWorks(data); err != nil {
		t.Fatal(err)
	}
	next.look()
	for _, rows := range []int{1, 20, 60} {
		got, want := next.told("x").Table.Mean(rows), x.Table.Mean(rows)
		if math.Abs(float64(got)/float64(want)-1) > .02 {
			t.Errorf("after the restart the work of %d rows takes %v, want %v", rows, got, want)
		}
	}
	next.serve(40, 1)
	if l := next.told("x"); math.Abs(l.Law.PerValue-x.Law.PerValue) > 1e-12 {
		t.Errorf("after few runs the law is %v, want %v still", l.Law, x.Law)
	}
	if again, err := next.MarshalWorks(); err != nil || again == nil {
		t.Errorf("saved again: %s, %v", again, err)
	}

	// What a former leader has told counts more.
	told := newWorkWorld(t)
	other := *x
	other.Law = work.Law{PerValue: 2}
	told.Suggest([]*leader.Member{w.a, w.b}, []leader.Latency{other})
	if err := told.RestoreWorks(data); err != nil {
		t.Fatal(err)
	}
	told.look()
	if l := told.told("x"); l.Law != other.Law {
		t.Errorf("the law is %v, want %v, as the former leader has told", l.Law, other.Law)
	}

	// Nothing is kept of a model that no member has.
	gone := newWorkWorld(t)
	gone.are(member("a", "x", "", n))
	if err := gone.RestoreWorks(data); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		gone.look()
		gone.Forget(gone.now)
		gone.now = gone.now.Add(keepGone)
	}
	if n := gone.Sizes()["works"]; n != 0 {
		t.Errorf("%d models have work, want none", n)
	}

	for _, damaged := range []string{
		"", "{", `{"format": 9}`, `{"format": 1, "models": [{"model": "m", "rows_per_value": -1}]}`,
		`{"format": 1, "models": [{"model": "m", "rows_per_value": 1, "profiles": [null]}]}`,
		string(data[:len(data)/2]),
	} {
		if err := newWorkWorld(t).RestoreWorks([]byte(damaged)); err == nil {
			t.Errorf("%.40q is read without an error", damaged)
		}
	}
}

// TestTypeWithoutRuns: of a type that has not run the model, what is known by rows counts for the
// work that queries have in the mean.
func TestTypeWithoutRuns(t *testing.T) {
	w := newWorkWorld(t)
	w.serve(240, 1)
	c := member("c", "z", "", m)
	knots := []profiles.Knot{{BatchSize: 40, Mean: 8e6, P50: 8e6, P90: 8e6, P99: 8e6}}
	table, err := profiles.NewTable(c.Models[0].Profile, profiles.Measured, "", knots)
	if err != nil {
		t.Fatal(err)
	}
	w.book.Begin(c.Models[0].Profile, table)
	w.are(w.a, w.b, c)
	w.look()
	// 20.5 rows have 49.5 values in the mean: their work is 45 rows, 2.2 of each.
	if l := w.told("z"); l.Law != w.told("x").Law || l.Table.Mean(80) != 8*time.Millisecond ||
		l.Table.Mean(100) < 8500*time.Microsecond {
		t.Errorf("a type without runs has %v for 80 rows, %v for 100, want 8ms up to about 88",
			l.Table.Mean(80), l.Table.Mean(100))
	}
}

// TestForgetsWork: what is known of the work of a model that is gone is forgotten, and users of
// whom agents do not tell are no runs.
func TestForgetsWork(t *testing.T) {
	w := newWorkWorld(t)
	for range 200 { // of several queries, by an agent that tells no sums
		w.seen.Observations = append(w.seen.Observations, Observation{
			Member: w.a, Model: m, BatchSize: 20, Users: -1, Execution: took(20, 20), At: w.now,
		})
	}
	w.look()
	if n := w.Sizes()["works"]; n != 0 {
		t.Errorf("%d models have work, want none", n)
	}
	w.serve(100, 1)
	if n := w.Sizes()["works"]; n != 1 {
		t.Fatalf("%d models have work, want 1", n)
	}
	w.are(member("a", "x", "", n))
	for range 3 {
		w.look()
		w.Forget(w.now)
		w.now = w.now.Add(keepGone)
	}
	if n := w.Sizes()["works"]; n != 0 {
		t.Errorf("%d models have work after theirs is gone, want none", n)
	}
}
