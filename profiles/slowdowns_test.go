package profiles_test

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// TestBesideOthers: what a model takes beside others starts from what it takes alone, times its
// slowdown, and is learned apart from it.
func TestBesideOthers(t *testing.T) {
	on := profiles.LaneDescription{InstanceType: "box", Provider: "cpu", Lanes: 2, Cores: 1}
	c := profiles.DefaultCatalogue()
	alone := profiles.KeyOf(c, "wnd", 1, "aa", on)
	on.Beside = []string{"rm2", "ncf", "rm2"}
	beside := profiles.KeyOf(c, "wnd", 1, "aa", on)
	if beside.Beside != "ncf+rm2" || beside == alone {
		t.Fatalf("got the key %+v", beside)
	}
	b := profiles.NewBook(nil)
	b.SetSlowdowns(profiles.Slowdowns{"wnd": {"rm2": 1.5, "ncf": 1.1, "wnd": 9}})
	if b.Table(beside) != nil {
		t.Error("there is a table of a model of which nothing is known")
	}
	now := time.Unix(0, 0)
	takes := func(key profiles.Key, want time.Duration) {
		t.Helper()
		if got := b.Table(key).Mean(10); math.Abs(float64(got)/float64(want)-1) > 0.05 {
			t.Errorf("%s takes %v, want %v", key, got, want)
		}
	}
	observe := func(key profiles.Key, cusum time.Duration) {
		for range 300 {
			if err := b.Observe(key, 10, cusum, "a", now); err != nil {
				t.Fatal(err)
			}
		}
	}
	observe(alone, 10*time.Millisecond)
	takes(beside, 16*time.Millisecond)
	if got := b.Table(beside).Origin(); got != profiles.Inherited {
		t.Errorf("what was never measured is of origin %s", got)
	}
	other := beside
	other.Beside = "dien" // of which no slowdown is known
	takes(other, 10*time.Millisecond)
	on.Ways = 4
	parted := profiles.KeyOf(c, "wnd", 1, "aa", on)
	if parted == beside || parted.Beside != "ncf+rm2/4w" {
		t.Errorf("with ways of its own: %+v", parted)
	}
	takes(parted, 16*time.Millisecond)
	observe(beside, 13*time.Millisecond)
	takes(beside, 13*time.Millisecond)
	takes(alone, 10*time.Millisecond)

	path := filepath.Join(t.TempDir(), "book.json")
	if err := b.Save(path); err != nil {
		t.Fatal(err)
	}
	b = profiles.NewBook(nil)
	if err := b.Load(path); err != nil {
		t.Fatal(err)
	}
	takes(beside, 13*time.Millisecond)
	takes(alone, 10*time.Millisecond)
}

// TestForgetsNeighbours: keys with neighbours are forgotten an hour after their last use, those
// without stay, and there are never many.
func TestForgetsNeighbours(t *testing.T) {
	b := profiles.NewBook(nil)
	start := time.Unix(0, 0)
	key := func(i int) profiles.Key {
		k := profiles.Key{Model: "wnd", Version: 1, InstanceType: "box"}
		if i > 0 {
			k.Beside = fmt.Sprintf("m%d", i)
		}
		return k
	}
	const kinds = 100
	for i := range kinds + 1 {
		if err := b.Observe(key(i), 10, time.Millisecond, "a",
			start.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	uses := func(k profiles.Key) bool { return k == key(1) }
	for minute := range 64 {
		b.Forget(start.Add(time.Duration(minute)*time.Minute), 5*time.Minute, uses)
		n := len(b.Keys())
		switch {
		case minute < 5 && n != kinds+1:
			t.Fatalf("after %d minutes %d keys are left, want all", minute, n)
		case minute >= 5 && minute < 60 && n != 2+64:
			t.Fatalf("after %d minutes %d keys are left, want 66", minute, n)
		case minute >= 60 && n != 2:
			t.Fatalf("after %d minutes %d keys are left, want 2: %v", minute, n, b.Keys())
		}
	}
	if b.FindLearner(key(0)) == nil || b.FindLearner(key(1)) == nil {
		t.Errorf("the keys left are %v", b.Keys())
	}
}
