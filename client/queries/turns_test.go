package queries

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// arriveLeaderless is a query that arrives and is sent to a lane.
func arriveLeaderless(tb testing.TB, s *State, now time.Duration) *Query {
	q := &Query{}
	s.Arrive(q, now)
	if got := s.Inquire(now); got != q {
		tb.Fatalf("to be decided is %+v, want the query that has just arrived", got)
	}
	s.Decided(q, Target{Agent: "a", Reservation: 1, Took: time.Second})
	if _, ok := s.Take(q, now); !ok {
		tb.Fatal("a query that was decided is not sent")
	}
	drain(s)
	return q
}

func drain(s *State) {
	for _, ok := s.Next(); ok; _, ok = s.Next() {
	}
}

// BenchmarkLeaderless is what the gateway's queries cost, from the arrival of one to its end, where
// there is no leader and so many others are at lanes.
func BenchmarkLeaderless(b *testing.B) {
	for _, n := range []int{15, 1000} {
		b.Run(fmt.Sprint("in-flight=", n), func(b *testing.B) {
			s := New(func(*Query, names.AgentName) time.Duration { return time.Second })
			for range n {
				arriveLeaderless(b, s, 0)
			}
			b.ReportAllocs()
			for b.Loop() {
				q := arriveLeaderless(b, s, 0)
				s.Attempted(q, q.at.Attempt, Answered, nil, 0)
				s.Inquire(0)
				drain(s)
			}
		})
	}
}

// BenchmarkLed is the same where a leader assigns each query.
func BenchmarkLed(b *testing.B) {
	s := New(nil)
	s.Learn(Leadership{1, "a", ""})
	s.Try(0, func(names.AgentName) bool { return true })
	s.Opened(0)
	b.ReportAllocs()
	for b.Loop() {
		q := &Query{}
		s.Arrive(q, 0)
		s.Message()
		s.HandleLeaderMessage(q.Sequence, 0)
		s.HandleAssignment(Assign{Sequence: q.Sequence, Attempt: 1, Agent: "b"})
		s.Take(q, 0)
		s.Attempted(q, q.at.Attempt, Answered, nil, 0)
		drain(s)
	}
}

// TestOverdueOnce: when a query is overdue is found out once for each attempt, whatever happens to
// others meanwhile; and it is then the oldest that is decided again, so many at a time.
func TestOverdueOnce(t *testing.T) {
	const inFlight = 200
	asked := 0
	s := New(func(*Query, names.AgentName) time.Duration { asked++; return 0 })
	for range inFlight {
		arriveLeaderless(t, s, 0)
	}
	for range inFlight {
		s.Attempted(arriveLeaderless(t, s, 0), 1, Answered, nil, 0)
		if q := s.Inquire(0); q != nil {
			t.Fatalf("query %d is to be decided, which is at a lane", q.Sequence)
		}
	}
	if asked != 2*inFlight {
		t.Errorf("asked %d times how long an attempt may take, want %d: once each", asked,
			2*inFlight)
	}
	now := time.Second + minOverdue
	var decided []*Query
	oldest := s.pending.First()
	for i := range uint64(inFlight) {
		q := s.Inquire(now)
		if q == nil || q != oldest || q.stage != doubted {
			t.Fatalf("to be decided is %+v, want %+v, which is overdue", q, oldest)
		}
		oldest = oldest.inPending.Next()
		decided = append(decided, q)
		if i%maxInquiries == maxInquiries-1 {
			if s.Inquire(now) != nil {
				t.Fatalf("more than %d queries are decided at a time", maxInquiries)
			}
			for _, q := range decided {
				s.Undecided(q, now+time.Hour)
			}
			decided = nil
		}
	}
	if q := s.Inquire(now); q != nil {
		t.Errorf("query %d is to be decided twice", q.Sequence)
	}
}
