package profiles_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// TestAbsence: only what is away at each look, for as long as asked, is over; and that at each look
// from then on.
func TestAbsence(t *testing.T) {
	var a profiles.Absence[string]
	known := map[string]bool{"here": true, "gone": true, "back": true}
	there := map[string]bool{"here": true}
	start := time.Unix(0, 0)
	for minute, want := range []string{"[]", "[]", "[gone]", "[gone]", "[back gone]"} {
		there["back"] = minute == 1
		over := a.Over(start.Add(time.Duration(minute)*time.Minute), 2*time.Minute,
			maps.Keys(known), func(k string) bool { return there[k] })
		slices.Sort(over)
		if fmt.Sprint(over) != want {
			t.Errorf("after %d minutes %v are over, want %s", minute, over, want)
		}
	}
	delete(known, "gone")
	there["back"] = false
	if over := a.Over(start.Add(time.Hour), 2*time.Minute, maps.Keys(known),
		func(k string) bool { return there[k] }); fmt.Sprint(over) != "[back]" {
		t.Errorf("%v are over once gone is not known any more, want [back]", over)
	}
}

// TestBookForgets: of versions that are not used only the newest two stay, from which the next one
// starts, and after a while only.
func TestBookForgets(t *testing.T) {
	b := profiles.NewBook(nil)
	now := time.Unix(0, 0)
	learn := func(key profiles.Key, latency time.Duration) {
		t.Helper()
		for range 20 {
			now = now.Add(time.Millisecond)
			if err := b.Observe(key, 100, latency, "a", now); err != nil {
				t.Fatal(err)
			}
		}
	}
	const versions = 10
	for v := range int64(versions) {
		learn(bookKey(v+1), time.Duration(v+1)*time.Millisecond)
	}
	forget := func(used ...int64) (left string) {
		b.Forget(now, time.Minute,
			func(k profiles.Key) bool { return slices.Contains(used, k.Version) })
		var there []int64
		for _, k := range b.Keys() {
			there = append(there, k.Version)
		}
		return fmt.Sprint(there)
	}
	if got := forget(2, 5); got != "[1 2 3 4 5 6 7 8 9 10]" {
		t.Errorf("at first there are %s", got)
	}
	now = now.Add(time.Minute)
	if got := forget(2, 5); got != "[2 5 9 10]" {
		t.Errorf("while 2 and 5 are used there are %s, want [2 5 9 10]", got)
	}
	if got := forget(5); got != "[2 5 9 10]" {
		t.Errorf("just after 2 was used there are %s, want [2 5 9 10]", got)
	}
	now = now.Add(time.Minute)
	if got := forget(5); got != "[5 9 10]" {
		t.Errorf("a while after 2 was used there are %s, want [5 9 10]", got)
	}
	if got := b.Table(bookKey(11)).Mean(100).Seconds(); math.Abs(got/0.010-1) > 0.05 {
		t.Errorf("version 11 starts from %v s, want about that of version 10, 0.010", got)
	}
}

// TestBookIsBounded: however many types, models and versions have come and gone.
func TestBookIsBounded(t *testing.T) {
	b := profiles.NewBook(nil)
	now := time.Unix(0, 0)
	const types = 400
	for i := range types {
		now = now.Add(time.Second)
		if err := b.Observe(
			profiles.Key{
				Model: "wnd", Version: 1,
				InstanceType: profiles.InstanceType(fmt.Sprintf("t%d", i)),
			}, 10, time.Millisecond, "a", now); err != nil {
			t.Fatal(err)
		}
	}
	none := func(profiles.Key) bool { return false }
	b.Forget(now, time.Minute, none)
	forgotten := b.Forget(now.Add(time.Minute), time.Minute, none)
	if len(b.Keys()) != 256 || len(forgotten) != types-256 {
		t.Errorf("of %d keys %d are left and %d forgotten, want 256 left", types, len(b.Keys()),
			len(forgotten))
	}
	if b.FindLearner(profiles.Key{Model: "wnd", Version: 1, InstanceType: "t399"}) == nil ||
		b.FindLearner(profiles.Key{Model: "wnd", Version: 1, InstanceType: "t0"}) != nil {
		t.Errorf("those learned last are not those that are left: %v", b.Keys())
	}
}

// TestExcess: of each group the keys stay that were noted last, and the highest of those noted at
// once.
func TestExcess(t *testing.T) {
	var a profiles.Absence[string]
	now := time.Unix(0, 0)
	keys := []string{"a1", "b1"}
	for _, more := range [][]string{nil, {"a2", "a3"}, {"a0", "b0"}} {
		keys = append(keys, more...)
		a.Over(now, time.Hour, slices.Values(keys), func(string) bool { return false })
		now = now.Add(time.Second)
	}
	for n, want := range [][]string{
		{"a0", "a1", "a2", "a3", "b0", "b1"}, {"a1", "a2", "a3", "b1"}, {"a1", "a2"}, {"a1"}, nil,
	} {
		got := a.Excess(n, func(k string) string { return k[:1] }, strings.Compare)
		if !slices.Equal(got, want) {
			t.Errorf("but for %d of each: got %v, want %v", n, got, want)
		}
	}
}
