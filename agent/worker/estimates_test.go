package worker

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/models"
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
		now[0].TableKey().Type != held.LaneType() {
		t.Errorf("before it was %v, now %v; want a profile of ncf/1 on %s", before, now,
			held.LaneType())
	}
}

// TestAdoptsLaw: once the leader has told what values take, sizes are work and estimates those of the
// leader's profile by work; what gateways are told without a leader stays by rows.
func TestAdoptsLaw(t *testing.T) {
	own := &control.Member{
		Name: "a", InstanceType: "x", Lanes: 1,
		Models: []*control.Model{{Name: "m", Version: 1}},
	}
	e := newEstimates(profiles.ShippedLibrary(), profiles.DefaultCatalogue(), func() *control.Member { return own })
	e.noteLoaded("m/1", "sum")
	for range 40 {
		e.Observe("m/1", 10, 30*time.Millisecond)
	}
	loaded := &LoadedVersion{
		Version: &models.Version{Config: models.Config{LargestBatchSize: 100}},
		Model:   &LoadedModel{profile: "m/1"},
	}
	size := func(values int) int {
		return e.sizeOf(loaded, 10, roles.QuerySize{Rows: 10, Users: 1, Values: values})
	}
	if n := size(40); n != 10 {
		t.Errorf("without a law the size is %d, want the rows", n)
	}
	byWork, err := profiles.NewTable(profiles.Key{Model: "m", InstanceType: "x", Provider: "cpu"},
		profiles.Learned, "", []profiles.Knot{
			{BatchSize: 10, Mean: 5e6, P50: 5e6, P90: 5e6, P99: 5e6},
			{BatchSize: 100, Mean: 95e6, P50: 95e6, P90: 95e6, P99: 95e6},
		})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(byWork)
	if err != nil {
		t.Fatal(err)
	}
	told := &control.Profile{
		Model: "m/1", Type: string(own.LaneTypeOf("m")), RowsPerValue: .5, WorkTable: text,
	}
	other := &control.Profile{Model: "m/1", Type: "other", RowsPerValue: 3, WorkTable: text}
	e.adoptLaws(own, []*control.Profile{told, other})
	if a, b := size(40), size(1000); a != 30 || b != 100 {
		t.Errorf("the sizes are %d and %d, want 30 and the largest, 100", a, b)
	}
	if got := e.Estimate("m/1", 30); got != 25*time.Millisecond {
		t.Errorf("work of 30 rows takes %v, want 25ms", got)
	}
	v := &control.View{Members: []*control.Member{own}}
	e.addProfiles(v)
	var byRows profiles.Table
	if err := json.Unmarshal(v.Profiles[0].Table, &byRows); err != nil {
		t.Fatal(err)
	}
	if got := byRows.Mean(10); got < 29*time.Millisecond {
		t.Errorf("gateways are told that 10 rows take %v, want 30ms", got)
	}
	e.adoptLaws(own, []*control.Profile{{Model: "m/1", Type: told.Type, Table: text}})
	if n := size(40); n != 10 {
		t.Errorf("when the law is gone the size is %d, want the rows", n)
	}
}
