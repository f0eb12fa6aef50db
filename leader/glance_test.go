package leader

import (
	"fmt"
	"testing"
	"time"
)

// TestGlance: a glance says what a status says, and of each lane what it does.
func TestGlance(t *testing.T) {
	in := newServing(t)
	in.greet("w1")
	for sequence := range uint64(50) {
		in.query(sequence + 1)
	}
	in.submit(7, 99) // it stays on a lane
	var g Glance
	for range 2 { // the second time it reuses the slices
		in.Glance(&g)
		s := in.Status()
		if g.Rate != s.Rate || g.Limit != s.Limit || g.Waiting != s.Waiting || len(g.Models) != 1 ||
			!g.Any || g.Within != s.Models[0].Within {
			t.Errorf("the glance is %+v, the status %+v", g, s)
		}
		m := g.Models[0]
		if m.ModelID != modelM || m.Answered != s.Models[0].Answered || m.Answered != 50 ||
			m.Rate != s.Models[0].Rate {
			t.Errorf("the model is %+v, the status says %+v", m, s.Models[0])
		}
		if len(g.Lanes) != 2 {
			t.Fatalf("%d lanes, want 2", len(g.Lanes))
		}
		runs := 0
		for _, l := range g.Lanes {
			if l.Runs == modelM.Key() && l.Free > 0 {
				runs++
			} else if l.Runs != "" {
				t.Errorf("lane %+v", l)
			}
		}
		if runs != 1 {
			t.Errorf("%d lanes run the query, want 1: %+v", runs, g.Lanes)
		}
	}
	in.pass(5 * time.Second)
	in.Glance(&g)
	silent := 0
	for _, l := range g.Lanes {
		if l.Silent {
			silent++
		}
	}
	if silent != 2 { // the query was offered to the other lane, too
		t.Errorf("%d silent lanes after 5 s without an answer, want 2: %+v", silent, g.Lanes)
	}
}

// BenchmarkGlance takes a glance at a thousand lanes that run queries, which the leader does each
// second whoever looks. It is to take less than 200 us.
func BenchmarkGlance(b *testing.B) {
	for _, lanes := range []int{1, 4} {
		b.Run(fmt.Sprintf("agents=%d", 1000/lanes), func(b *testing.B) {
			in := newTold(b)
			var members []*Member
			for i := range 1000 / lanes {
				m := box(fmt.Sprintf("ip-10-0-%d-%d.ec2.internal-a1b2c3d4", i/256, i%256))
				m.Lanes = lanes
				members = append(members, m)
			}
			in.tell(Event{Kind: ViewChanged, Members: members})
			for _, m := range members {
				in.tell(Event{Kind: Described, Member: m})
				in.tell(Event{
					Kind: Greeted, Agent: m.Name, Free: make([]time.Duration, lanes),
				})
			}
			in.learn(50 * time.Millisecond)
			in.tell(Event{Kind: GatewayConnected, Gateway: 7})
			for sequence := range uint64(1000) {
				in.submit(7, 4*sequence+4)
			}
			var g Glance
			b.ReportAllocs()
			for b.Loop() {
				in.Glance(&g)
			}
			if len(g.Lanes) != 1000 {
				b.Fatalf("%d lanes", len(g.Lanes))
			}
			runs := 0
			for _, l := range g.Lanes {
				if l.Runs != "" {
					runs++
				}
			}
			b.ReportMetric(float64(runs), "busy-lanes")
		})
	}
}
