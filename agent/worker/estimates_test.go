package worker

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
)

// TestEstimatesForget: an agent keeps its estimates of versions that are held, and what it learned
// of the last ones.
func TestEstimatesForget(t *testing.T) {
	e := newEstimates(profiles.ShippedLibrary(), profiles.DefaultCatalogue(),
		func() *control.Member {
			return &control.Member{InstanceType: "box", Provider: "cpu", Lanes: 1, Cores: 1}
		})
	now, held := time.Unix(0, 0), map[names.ModelKey]bool{}
	const versions = 200
	for v := 1; v <= versions; v++ {
		clear(held)
		held[names.ModelKey(fmt.Sprintf("ncf/%d", v))] = true
		e.noteLoaded(names.ModelKey(fmt.Sprintf("ncf/%d", v)), fmt.Sprint(v))
		e.Observe(names.ModelKey(fmt.Sprintf("ncf/%d", v)), 10, time.Duration(v)*time.Millisecond)
		now = now.Add(time.Minute)
		e.dropGone(now, held)
		if n, most := len(e.learned), int(members.KeepTold/time.Minute)+2; n > most {
			t.Fatalf("with version %d there are %d estimates, want at most %d", v, n, most)
		}
	}
	now = now.Add(members.KeepTold)
	e.dropGone(now, held)
	if len(e.learned) != 1 || len(e.book.Keys()) != 3 {
		t.Errorf("in the end there are %d estimates and %d keys, want 1 and 3", len(e.learned),
			len(e.book.Keys()))
	}
	if got := e.Estimate(names.ModelKey(fmt.Sprintf("ncf/%d", versions+1)), 10); got < 190*
		time.Millisecond {
		t.Errorf("a new version starts from %v, want about 200 ms, as the last", got)
	}
}

// TestEstimatesOfLateType: an agent that learns what it runs on when queries have run already
// goes on from what they showed, or from what the program knows of the type.
func TestEstimatesOfLateType(t *testing.T) {
	for _, typ := range []string{"local:box:4", "r5n.large"} {
		lanes := &control.Member{Provider: "cpu", Lanes: 1, Cores: 2}
		e := newEstimates(profiles.ShippedLibrary(), profiles.DefaultCatalogue(),
			func() *control.Member { return lanes })
		e.noteLoaded("ncf/1", "aa")
		for range 50 {
			e.Observe("ncf/1", 100, time.Second)
		}
		lanes.InstanceType = typ
		want := time.Second
		if typ == "r5n.large" {
			shipped, err := profiles.ShippedLibrary().Table("ncf", "r5n.large")
			if err != nil {
				t.Fatal(err)
			}
			want = shipped.Mean(100)
		}
		if got := e.Estimate("ncf/1", 100); math.Abs(float64(got)/float64(want)-1) > 0.01 {
			t.Errorf("on %s batch size 100 should take %v, want %v", typ, got, want)
		}
		m := &control.Model{Name: "ncf", Version: 1, Checksum: "aa"}
		if got, want := e.estimateOf("ncf/1").key, members.KeyOf(profiles.DefaultCatalogue(), lanes,
			m); got != want {
			t.Errorf("learns under %v, want %v", got, want)
		}
	}
}

// TestLearned: whoever asks whether Complete may add more hears of what was learned.
func TestLearned(t *testing.T) {
	lanes := &control.Member{InstanceType: "box", Provider: "cpu", Lanes: 1, Cores: 1}
	held := &control.Member{
		InstanceType: "box", Provider: "cpu", Lanes: 1, Cores: 1, Models: []*control.Model{
			{Name: "ncf", Version: 1, Checksum: "aa"},
		},
	}
	e := newEstimates(profiles.ShippedLibrary(), profiles.DefaultCatalogue(),
		func() *control.Member { return lanes })
	e.noteLoaded("ncf/1", "aa")
	complete := func() []*control.Profile {
		v := &control.View{Members: []*control.Member{held}}
		e.addProfiles(v)
		return v.Profiles
	}
	before, times := complete(), e.learnedTimes.Load()
	for range 10 {
		e.Observe("ncf/1", 10, 123*time.Millisecond)
	}
	if e.learnedTimes.Load() == times {
		t.Error("nothing is said to be learned of ten queries")
	}
	if now := complete(); len(before) != 0 || len(now) != 1 || now[0].Model != "ncf/1" ||
		now[0].Key().Type != held.LaneType() {
		t.Errorf("before it was %v, now %v; want a profile of ncf/1 on %s", before, now,
			held.LaneType())
	}
}
