package client

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/lateness"
)

const milli = time.Millisecond

// TestFill: a query's time is divided whole, whatever happened to it.
func TestFill(t *testing.T) {
	type parts = [lateness.Components]time.Duration
	spent := parts{lateness.AwaitedLane: 20 * milli, lateness.RanAsProfiled: 30 * milli}
	sent := spentTime{
		sent: 100 * milli, ended: 200 * milli, waited: 70 * milli, agent: "vm-2", spent: spent,
		says: true, lanes: spent,
	}
	for _, c := range []struct {
		name string
		t    func(*spentTime)
		q    func(*spentQuery)
		want parts
	}{
		{"a worker that says", nil, nil, parts{
			lateness.ArrivedLate: 10 * milli, lateness.AwaitedLane: 80 * milli,
			lateness.OnTheWay: 80 * milli, lateness.RanAsProfiled: 30 * milli,
		}},
		{"one that was quick", func(t *spentTime) { t.says, t.spent = false, parts{} }, nil, parts{
			lateness.ArrivedLate: 10 * milli, lateness.AwaitedLane: 60 * milli,
			lateness.RanAsProfiled: 25 * milli, lateness.OnTheWay: 105 * milli,
		}},
		{"one that does not measure", func(t *spentTime) { t.says, t.spent = false, parts{} },
			func(q *spentQuery) { q.measures = false }, parts{
				lateness.ArrivedLate: 10 * milli, lateness.AwaitedLane: 60 * milli,
				lateness.OnTheWay: 30 * milli, lateness.Unmeasured: 100 * milli,
			}},
		{"a leader that does not say", func(t *spentTime) { t.waited = -1 }, nil, parts{
			lateness.ArrivedLate: 10 * milli, lateness.Unmeasured: 90 * milli,
			lateness.AwaitedLane: 20 * milli, lateness.OnTheWay: 50 * milli,
			lateness.RanAsProfiled: 30 * milli,
		}},
		{"no leader, and an agent lost", func(t *spentTime) { t.lost = 40 * milli },
			func(q *spentQuery) { q.unled = true }, parts{
				lateness.ArrivedLate: 10 * milli, lateness.LostToHost: 40 * milli,
				lateness.AwaitedLeader: 50 * milli, lateness.AwaitedLane: 20 * milli,
				lateness.OnTheWay: 50 * milli, lateness.RanAsProfiled: 30 * milli,
			}},
		{"a leader that waited for a lane without CPU", func(t *spentTime) {
			t.spent = parts{lateness.LackedCPU: 60 * milli, lateness.RanAsProfiled: 30 * milli}
			t.lanes = t.spent
		}, nil, parts{
			lateness.ArrivedLate: 10 * milli, lateness.LackedCPU: 120 * milli,
			lateness.OnTheWay: 40 * milli, lateness.RanAsProfiled: 30 * milli,
		}},
		{"a long run of its own, on lanes whose runs were as profiled", func(t *spentTime) {
			t.spent = parts{lateness.RanLong: 60 * milli, lateness.RanAsProfiled: 30 * milli}
			t.lanes = parts{lateness.RanLong: 60 * milli, lateness.RanAsProfiled: 1000 * milli}
		}, nil, parts{
			lateness.ArrivedLate: 10 * milli, lateness.AwaitedLane: 60 * milli,
			lateness.RanLong: 60 * milli, lateness.OnTheWay: 40 * milli,
			lateness.RanAsProfiled: 30 * milli,
		}},
		{"a leader that answers too late", func(t *spentTime) { t.own = true }, nil, parts{
			lateness.ArrivedLate: 10 * milli, lateness.OnTheWay: 140 * milli,
			lateness.AwaitedLane: 20 * milli, lateness.RanAsProfiled: 30 * milli,
		}},
		{"a worker whose clock is fast", func(t *spentTime) {
			t.spent = parts{lateness.RanAsProfiled: 400 * milli}
		}, nil, parts{
			lateness.ArrivedLate: 10 * milli, lateness.AwaitedLane: 60 * milli,
			lateness.OnTheWay: 30 * milli, lateness.RanAsProfiled: 100 * milli,
		}},
		{"never sent", func(t *spentTime) { *t = spentTime{} }, nil, parts{
			lateness.ArrivedLate: 10 * milli, lateness.AwaitedLane: 190 * milli,
		}},
	} {
		of, q := sent, spentQuery{began: 10 * milli, now: 200 * milli, measures: true}
		if c.t != nil {
			c.t(&of)
		}
		if c.q != nil {
			c.q(&q)
		}
		r := &lateness.Record{Target: 100 * milli}
		of.fill(r, q)
		if r.Parts != c.want || r.Total() != q.now-q.arrival {
			t.Errorf("%s: %v of %v, want %v of 200 ms", c.name, r.Parts, r.Total(), c.want)
		}
	}
}

// TestStandstills: a timer that fires late means that the process stood still, and what it then
// sends at once waits because of that.
func TestStandstills(t *testing.T) {
	s := &standstills{}
	at := func(due, now time.Duration) { s.due = due; s.noteTimer(now) }
	at(5*milli, 6*milli) // on time
	at(100*milli, 1100*milli)
	s.noteTimer(5000 * milli) // it was not set
	for _, c := range []struct{ arrival, end, want time.Duration }{
		{0, 90 * milli, 0},
		{0, 1100 * milli, 1000 * milli},
		{600 * milli, 1105 * milli, 505 * milli},
		{1101 * milli, 1501 * milli, 400 * milli}, // of the queries that had piled up
		{2000 * milli, 2500 * milli, 100 * milli},
		{2200 * milli, 2500 * milli, 0},
	} {
		if got := s.within(c.arrival, c.end); got != c.want {
			t.Errorf("from %v to %v: %v, want %v", c.arrival, c.end, got, c.want)
		}
	}
	s.due = 6000 * milli
	if got := s.within(5900*milli, 6500*milli); got != 500*milli {
		t.Errorf("of a timer that has not fired yet: %v, want 500 ms", got)
	}
}
