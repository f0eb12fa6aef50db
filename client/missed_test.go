package client

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/lateness"
)

const testMs = time.Millisecond

// TestFill: a query's time is divided whole, whatever happened to it.
func TestFill(t *testing.T) {
	type parts = [lateness.Components]time.Duration
	spent := parts{lateness.AwaitedLane: 20 * testMs, lateness.RanAsProfiled: 30 * testMs}
	sent := spentTime{
		sent: 100 * testMs, ended: 200 * testMs, waited: 70 * testMs, agent: "vm-2", spent: spent,
		says: true,
	}
	for _, c := range []struct {
		name string
		t    func(*spentTime)
		q    func(*spentQuery)
		want parts
	}{
		{"a worker that says", nil, nil, parts{
			lateness.ArrivedLate: 10 * testMs, lateness.AwaitedLane: 80 * testMs,
			lateness.OnTheWay: 80 * testMs, lateness.RanAsProfiled: 30 * testMs,
		}},
		{"one that was quick", func(t *spentTime) { t.says, t.spent = false, parts{} }, nil, parts{
			lateness.ArrivedLate: 10 * testMs, lateness.AwaitedLane: 60 * testMs,
			lateness.RanAsProfiled: 25 * testMs, lateness.OnTheWay: 105 * testMs,
		}},
		{"one that does not measure", func(t *spentTime) { t.says, t.spent = false, parts{} },
			func(q *spentQuery) { q.measures = false }, parts{
				lateness.ArrivedLate: 10 * testMs, lateness.AwaitedLane: 60 * testMs,
				lateness.OnTheWay: 30 * testMs, lateness.Unmeasured: 100 * testMs,
			}},
		{"a leader that does not say", func(t *spentTime) { t.waited = -1 }, nil, parts{
			lateness.ArrivedLate: 10 * testMs, lateness.Unmeasured: 90 * testMs,
			lateness.AwaitedLane: 20 * testMs, lateness.OnTheWay: 50 * testMs,
			lateness.RanAsProfiled: 30 * testMs,
		}},
		{"no leader, and an agent lost", func(t *spentTime) { t.lost = 40 * testMs },
			func(q *spentQuery) { q.unled = true }, parts{
				lateness.ArrivedLate: 10 * testMs, lateness.LostToHost: 40 * testMs,
				lateness.AwaitedLeader: 50 * testMs, lateness.AwaitedLane: 20 * testMs,
				lateness.OnTheWay: 50 * testMs, lateness.RanAsProfiled: 30 * testMs,
			}},
		{"a worker whose clock is fast", func(t *spentTime) {
			t.spent = parts{lateness.RanAsProfiled: 400 * testMs}
		}, nil, parts{
			lateness.ArrivedLate: 10 * testMs, lateness.AwaitedLane: 60 * testMs,
			lateness.OnTheWay: 30 * testMs, lateness.RanAsProfiled: 100 * testMs,
		}},
		{"never sent", func(t *spentTime) { *t = spentTime{} }, nil, parts{
			lateness.ArrivedLate: 10 * testMs, lateness.AwaitedLane: 190 * testMs,
		}},
	} {
		of, q := sent, spentQuery{began: 10 * testMs, now: 200 * testMs, measures: true}
		if c.t != nil {
			c.t(&of)
		}
		if c.q != nil {
			c.q(&q)
		}
		r := &lateness.Record{Target: 100 * testMs}
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
	at(5*testMs, 6*testMs) // on time
	at(100*testMs, 1100*testMs)
	s.noteTimer(5000 * testMs) // it was not set
	for _, c := range []struct{ arrival, end, want time.Duration }{
		{0, 90 * testMs, 0},
		{0, 1100 * testMs, 1000 * testMs},
		{600 * testMs, 1105 * testMs, 505 * testMs},
		{1101 * testMs, 1501 * testMs, 400 * testMs}, // of the queries that had piled up
		{2000 * testMs, 2500 * testMs, 100 * testMs},
		{2200 * testMs, 2500 * testMs, 0},
	} {
		if got := s.within(c.arrival, c.end); got != c.want {
			t.Errorf("from %v to %v: %v, want %v", c.arrival, c.end, got, c.want)
		}
	}
	s.due = 6000 * testMs
	if got := s.within(5900*testMs, 6500*testMs); got != 500*testMs {
		t.Errorf("of a timer that has not fired yet: %v, want 500 ms", got)
	}
}
