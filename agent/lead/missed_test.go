package lead

import (
	"testing"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

// TestMissedPump: what gateways say is counted by names that the fleet has, and no number of theirs
// makes the counts overflow. SDKs' queries count in the metrics here, as nobody scrapes SDKs.
func TestMissedPump(t *testing.T) {
	counts := &testCounts{failed: map[string]uint64{}}
	member := &control.Member{Name: "vm-2"}
	x := &term{
		leader: &Leader{config: Config{Counts: counts}},
		viewed: map[*control.Member]*leader.Member{member: {
			Models: []leader.HeldModel{
				{ModelID: leader.ModelID{Name: "wnd"}, Family: "ctr"},
				{ModelID: leader.ModelID{Name: "ncf"}},
			},
		}},
		described: map[names.AgentName]*control.Member{},
	}
	p := &x.missed
	p.term = x
	for _, m := range []*control.Missed{
		{Model: "ncf", Cause: "cpu", Agent: "vm-2", Count: 3, TimeNs: 3e9},
		{Model: "ctr", Cause: "lane", Agent: "nobody", Count: 2},
		{Model: "made up", Cause: "of tomorrow", Count: 1},
		{Model: "ncf", Cause: "way", Agent: "vm-2", Count: 1 << 63, TimeNs: 1 << 62},
		{Model: "ncf", Cause: "way"},
	} {
		p.count(&gateway{sdk: m.GetCause() == "lane"}, m)
	}
	glance := &leader.Glance{Models: []leader.ModelGlance{
		{ModelID: leader.ModelID{Name: "wnd", Version: 1}, Answered: 10, Failed: 2},
		{ModelID: leader.ModelID{Name: "ncf", Version: 1}, Answered: 100},
	}}
	p.countEnded(glance)
	glance.Models[1].Answered = 150
	p.countEnded(glance)
	s := p.summary(0).Summary()
	want := []lateness.CauseCount{
		{Key: lateness.Key{Model: "ncf", Cause: lateness.Way, Agent: "vm-2"}},
		{Key: lateness.Key{Model: "ncf", Cause: lateness.CPU, Agent: "vm-2"}},
		{Key: lateness.Key{Model: "ctr", Cause: lateness.Lane}},
		{Key: lateness.Key{Cause: lateness.Unknown}},
	}
	if len(s.Missed) != len(want) {
		t.Fatalf("got %+v, want %d", s.Missed, len(want))
	}
	for i := range want {
		if s.Missed[i].Key != want[i].Key || s.Missed[i].Time < 0 {
			t.Errorf("got %+v, want %+v", s.Missed[i], want[i].Key)
		}
	}
	if s.Missed[0].Count != maxFailed || s.Missed[1].Count != 3 || s.Missed[1].Time != 3e9 {
		t.Errorf("got %+v", s.Missed)
	}
	if s.Ended["ctr"] != 12 || s.Ended["ncf"] != 150 || len(s.Ended) != 2 {
		t.Errorf("ended %v, want 12 of ctr and 150 of ncf", s.Ended)
	}
	if counts.missed != 2 {
		t.Errorf("%d in the metrics, want the 2 of the SDK", counts.missed)
	}
}
