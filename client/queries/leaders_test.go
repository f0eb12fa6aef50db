package queries

import (
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// TestLearnsNoLie: an epoch far above that of the leader whom a gateway has does not take it away
// from that leader, and one believed in its absence not from the leader of its fleet, though that
// has a lower epoch.
func TestLearnsNoLie(t *testing.T) {
	s := New(nil)
	far := uint64(1) << 40
	for _, step := range []struct {
		linked bool
		says   Leadership
		want   names.AgentName
	}{
		{false, Leadership{Epoch: 5, Leader: "a"}, "a"},
		{true, Leadership{Epoch: math.MaxUint64, Leader: "liar"}, "a"},
		{true, Leadership{Epoch: far, Leader: "liar"}, "a"},
		{true, Leadership{Epoch: 7, Leader: "b"}, "b"},
		{true, Leadership{Epoch: 6, Leader: "a"}, "b"},
		{false, Leadership{Epoch: far, Leader: "liar"}, "liar"},
		{false, Leadership{}, "liar"}, // of one that has just started
		{false, Leadership{Epoch: 8, Leader: "c"}, "c"},
		{false, Leadership{Epoch: math.MaxUint64, Leader: "liar"}, "liar"},
		{true, Leadership{Epoch: 9, Leader: "d"}, "d"},
	} {
		if s.link = linkNone; step.linked {
			s.link = linkOpen
		}
		if s.Learn(step.says); s.leaders.known.Leader != step.want {
			t.Errorf("linked %v, told %v: takes %q for the leader, want %q", step.linked, step.says,
				s.leaders.known.Leader, step.want)
		}
	}
}

// TestFarLeaderIsThere: a query that is decided without a leader has none only if the leader says
// nothing: one that is far answers late, and its heartbeats come.
func TestFarLeaderIsThere(t *testing.T) {
	for _, heartbeats := range []bool{true, false} {
		s := New(func(*Query, names.AgentName) time.Duration { return 0 })
		s.Learn(Leadership{Epoch: 1, Leader: "far"})
		s.Try(0, func(names.AgentName) bool { return true })
		s.Opened(0)
		q := &Query{Arrival: time.Millisecond}
		s.Arrive(q, q.Arrival)
		now := q.Arrival + heartbeatSilence
		if !s.Check(q.Arrival + 2*minSilence) {
			t.Fatal("the link is not silent")
		}
		if heartbeats {
			s.HandleLeaderMessage(0, now)
		}
		if got := s.Inquire(now + minSilence); got != q {
			t.Fatalf("decides %v without the leader, want the query", got)
		}
		if q.IsUnled() == heartbeats {
			t.Errorf("heartbeats %v: without a leader %v", heartbeats, q.IsUnled())
		}
	}
}
