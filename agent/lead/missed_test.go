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

// TestMissedByOldGateways: a gateway that does not say why its queries were missed has them counted
// for what is known: the reason of a failure, and of a late answer that nobody measured it.
func TestMissedByOldGateways(t *testing.T) {
	member := &control.Member{Name: "old"}
	x := &term{
		viewed: map[*control.Member]*leader.Member{member: {Models: []leader.HeldModel{
			{ModelID: leader.ModelID{Name: "wnd", Version: 1}, Family: "ctr", QoSTarget: 10},
		}}},
		gateways: map[uint64]*gateway{
			1: {id: 1, agent: "old"}, 2: {id: 2, agent: "new", knowsRoles: true}, 3: {id: 3},
		},
	}
	p := &x.missed
	p.term = x
	for gateway := range uint64(5) {
		for _, latency := range []int64{10, 11} {
			p.countLate(&control.Completed{
				Gateway: gateway, Model: "wnd", Version: 1, LatencyNs: latency,
			})
		}
	}
	p.countLate(&control.Completed{Gateway: 1, Model: "wnd", Version: 1, LatencyNs: 11, Refused: "no"})
	p.countUnsaid(x.gateways[1], "wnd", lateness.CauseOfFailure("overloaded", nil), 3, 0)
	p.countUnsaid(x.gateways[1], "", lateness.CauseOfFailure("deadline", nil), 2, 0)
	want := map[lateness.Key]uint64{
		{Model: "ctr", Cause: lateness.Unknown, Agent: "old"}: 1,
		{Model: "ctr", Cause: lateness.Unknown}:               1,
		{Model: "ctr", Cause: lateness.Lane}:                  3,
		{Cause: lateness.Unknown, Agent: "old"}:               2,
	}
	s := p.summary(0).Summary()
	for _, m := range s.Missed {
		if m.Count != want[m.Key] {
			t.Errorf("%d of %+v, want %d", m.Count, m.Key, want[m.Key])
		}
	}
	if len(s.Missed) != len(want) {
		t.Errorf("got %+v, want %d causes", s.Missed, len(want))
	}
}
