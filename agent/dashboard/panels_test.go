package dashboard

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
)

// TestProfilesOfParts: a model that has lanes of its own, beside those of another model, is shown with
// what was learned of it on such lanes, which is not what was learned of lanes that run all models.
func TestProfilesOfParts(t *testing.T) {
	member := &control.Member{
		Name: "a", Lanes: 2, Cores: 4, InstanceType: "box", Provider: "cpu",
		Models: []*control.Model{
			{Name: "ncf", Version: 1, QosTargetNs: 5e6, LargestBatchSize: 100},
			{Name: "wnd", Version: 1, QosTargetNs: 5e6, LargestBatchSize: 100},
		},
		Parts: []*control.Part{
			{Lanes: 1, Models: []string{"ncf"}, Cores: 3},
			{First: 1, Lanes: 1, Models: []string{"wnd"}, Cores: 1},
		},
	}
	view := &control.View{Members: []*control.Member{member}}
	learned := func(typ names.LaneType, mean time.Duration) {
		key := profiles.Key{Model: "ncf", Version: 1, InstanceType: "box", Provider: "cpu", Cores: 3}
		knot := func(batch int) profiles.Knot {
			return profiles.Knot{BatchSize: batch, Mean: mean, P50: mean, P90: mean, P99: mean}
		}
		table, err := profiles.NewTable(key, profiles.Learned, "a test",
			[]profiles.Knot{knot(1), knot(100)})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		view.Profiles = append(view.Profiles, &control.Profile{
			Model: "ncf/1", Type: string(typ), Table: text,
		})
	}
	of := member.LaneTypeOf("ncf")
	learned(member.LaneType(), time.Millisecond)
	learned(of, 2*time.Millisecond)
	learned(of.Own("a"), 3*time.Millisecond)

	d := New(Config{Library: profiles.ShippedLibrary()})
	shown := d.profilesOf(view, control.NewFleet(view, nil, nil).Models[0])
	if len(shown) != 2 || shown[0].Agent != "" || shown[1].Agent != "a" {
		t.Fatalf("got %+v, want the type's and the agent's own", shown)
	}
	for i, want := range []float64{2, 3} {
		if p := shown[i]; p.Learned == nil || p.Learned.MeanMs[0] != want || p.Cores != 3 {
			t.Errorf("got %+v of %d cores, want a mean of %v ms on 3", p.Learned, p.Cores, want)
		}
	}
}
