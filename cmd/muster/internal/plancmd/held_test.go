package plancmd

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles"
)

// TestNotesWhatAgentsHold: of ten agents one holds m and nine n, and m is asked for ten times as
// often: the plan says what they can do with that. If all hold both there is nothing to say.
func TestNotesWhatAgentsHold(t *testing.T) {
	const latency = 10 * time.Millisecond
	for _, together := range []bool{false, true} {
		reported := &control.FleetDemand{}
		for _, name := range []string{"m", "n"} {
			rate := map[string]float64{"m": 100, "n": 10}[name]
			reported.Models = append(reported.Models, &control.ModelDemand{
				Model: name, Version: 1, Queries: 1000, Rate: rate, BatchSizes: []uint32{1},
				Shares: []float64{1}, QosTargetNs: int64(25 * time.Millisecond),
				QosPercentile: .99, LargestBatchSize: 1,
			})
			table, err := profiles.NewTable(profiles.Key{
				Model: name, Version: 1, InstanceType: "x", Provider: "cpu",
			}, profiles.Learned, "", []profiles.Knot{
				{BatchSize: 1, Mean: latency, P50: latency, P90: latency, P99: latency},
			})
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(table)
			if err != nil {
				t.Fatal(err)
			}
			reported.Profiles = append(reported.Profiles,
				&control.LearnedProfile{Table: text, Queries: 1000})
		}
		for i := range 10 {
			m := &control.Member{
				Name: fmt.Sprint("a", i), InstanceType: "x", Lanes: 1, PriceUsdPerHour: 1,
			}
			for k, name := range []string{"m", "n"} {
				if together || (k == 0) == (i == 0) {
					m.Models = append(m.Models, &control.Model{Name: name, Version: 1})
				}
			}
			reported.Members = append(reported.Members, m)
		}
		live, _, _, err := ReadFleet(reported, FleetOptions{Catalogue: &profiles.Catalogue{}})
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(live.Notes, "; ")
		// m's 10 of 11 queries go to the one; one in a hundred may be late.
		if strings.Contains(notes, "can do at most 111.1 queries/s of this mix") == together {
			t.Errorf("all hold both: %v; notes are %q", together, notes)
		}
	}
}
