package learn

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles"
)

// TestBeginsFromLearned has a new leader get its first queries, where what it begins
// from is learned already, and where it is not: only then is each of them a reason to
// tell all what it changes.
func TestBeginsFromLearned(t *testing.T) {
	a := member("a", "x", "", m)
	learner := profiles.NewLearner(a.Models[0].Profile, nil)
	w := newWorld(t, 1)
	for i := range 500 {
		if err := learner.Observe(1+i%100, w.latency(1+i%100, 1), "a", w.now); err != nil {
			t.Fatal(err)
		}
	}
	table, err := json.Marshal(learner.Table())
	if err != nil {
		t.Fatal(err)
	}
	// told is how often a profile was told in the first 40 queries.
	told := func(suggested ...leader.Latency) (n int) {
		w := newWorld(t, 1)
		w.Suggest([]*leader.Member{a}, suggested)
		w.are(a)
		for i := range 40 {
			w.look()
			n += len(w.last.Latencies)
			if i > firstQueries && len(w.last.Latencies) > 0 {
				t.Errorf("query %d of a profile is a reason to tell it at once", i)
			}
			w.runs(a, m, 1+7*i%100, w.latency(1+7*i%100, 1))
			w.now = w.now.Add(time.Millisecond)
		}
		return n
	}
	key := names.TableKey{Model: m.Key(), Type: "x"}
	if n := told(leader.Latency{TableKey: key, Told: table}); n != 1 {
		t.Errorf("a profile that was learned is told %d times, want 1", n)
	}
	own := names.TableKey{Model: m.Key(), Type: "x@a"}
	for what, suggested := range map[string]leader.Latency{
		"nothing":                {},
		"an agent's own profile": {TableKey: own, Told: table},
		"a profile that is none": {TableKey: key, Told: table[1:]},
		"what somebody guessed":  {TableKey: key, Told: guessed(t, a)},
	} {
		if n := told(suggested); n < 10 {
			t.Errorf("from %s, a guess is corrected %d times, want 10 or more", what, n)
		}
	}
}

// TestGuessGivesWay: what the leader before guessed is not begun from where the book knows better.
func TestGuessGivesWay(t *testing.T) {
	a := member("a", "x", "", m)
	w := newWorld(t, 1)
	later := a.Models[0].Profile
	later.Version++
	for i := range 200 {
		if err := w.book.Observe(later, 1+i%100, w.latency(1+i%100, 1), "b", w.now); err != nil {
			t.Fatal(err)
		}
	}
	key := names.TableKey{Model: m.Key(), Type: "x"}
	w.Suggest([]*leader.Member{a}, []leader.Latency{{TableKey: key, Told: guessed(t, a)}})
	w.are(a)
	w.look()
	if got, want := w.advised[key].Profile.Mean(50), linear(50); math.Abs(float64(got)/
		float64(want)-1) > 0.05 {
		t.Errorf("batches of 50 take %v as told, want %v, as another version does", got, want)
	}
}

// guessed is what is told of a member's model before any query has run.
func guessed(t *testing.T, of *leader.Member) []byte {
	w := newWorld(t, 1)
	w.are(of)
	w.look()
	l := w.advised[names.TableKey{Model: m.Key(), Type: of.Type}]
	if l == nil || !l.Doubtful || l.Profile.Mean(largest) != target/2 {
		t.Fatalf("of a model of which nothing is known this is told: %+v", l)
	}
	return l.Told
}

// TestOtherFiles: agents of one type hold other files under the same version. What runs at one says
// nothing of the others, nor that it is slow; what is told is of the files that most hold.
func TestOtherFiles(t *testing.T) {
	w := newWorld(t, 1)
	all := []*leader.Member{
		member("a", "x", "new", m), member("b", "x", "old", m), member("c", "x", "old", m),
	}
	w.are(all...)
	for i := range 300 {
		batch, factor := 1+i%100, 1.0
		if i%3 == 0 {
			factor = 3
		}
		w.runs(all[i%3], m, batch, w.latency(batch, factor))
		w.look()
		w.now = w.now.Add(10 * time.Millisecond)
	}
	told := w.advised[names.TableKey{Model: m.Key(), Type: "x"}].Profile
	if got, want := told.Mean(50), linear(50); math.Abs(float64(got)/float64(want)-1) > 0.05 {
		t.Errorf("%v is told of batch size 50, want %v, as the files have that most hold", got,
			want)
	}
	if len(w.slow) > 0 {
		t.Errorf("these are slow: %v, want none", w.slow)
	}
	for i, want := range []uint64{100, 200, 200} {
		if got := w.book.Learner(all[i].Models[0].Profile).Queries(); got != want {
			t.Errorf("%d queries are known of the files of %s, want %d", got, all[i].Name, want)
		}
	}
	w.runs(member("d", "x", "new"), m, 50, time.Second) // the version was unloaded meanwhile
	w.look()
	if keys := w.book.Keys(); len(keys) != 2 {
		t.Errorf("is learned of %v, want of two versions of the files", keys)
	}
	if l := w.Learned(); len(l) != 1 || l[0].Key().Checksum != "old" {
		t.Errorf(
			"%d profiles are learned of one version on one type, want 1, of the files that ran "+
				"last", len(l))
	}
}

// TestDemandChanges: what is asked of a model changes, and is told once, as what it was and what it
// is; of a model that stays as it is nothing is.
func TestDemandChanges(t *testing.T) {
	w := newWorld(t, 1)
	w.are(member("a", "x", "", m, n))
	w.look()
	ask := func(queries, largest int) (all []DemandChange) {
		for range queries {
			w.now = w.now.Add(time.Duration(w.random.ExpFloat64() * 5e6))
			w.arrives(n, 1+w.random.IntN(100))
			w.arrives(m, 1+w.random.IntN(largest))
			w.look()
			all = append(all, w.DemandChanges()...)
		}
		return all
	}
	if all := ask(2000, 50); len(all) > 0 {
		t.Fatalf("before anything has changed: %v", all)
	}
	for i, largest := range []int{100, 50} {
		all := ask(3000, largest)
		if len(all) != 1 || all[0].Model != m || all[0].Kind != profiles.BatchSizesChanged ||
			math.Abs(all[0].Now.MeanSize-float64(largest)/2) > 4 {
			t.Fatalf("change %d: got %v", i, all)
		}
	}
}
