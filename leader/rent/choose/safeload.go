package choose

import (
	"fmt"
	"math"
	"time"
)

// A Lateness is how a model did in the last minute.
type Lateness struct {
	Model   string
	Queries float64 // about how many there were
	// LateShare is the share of them that were answered late or failed, and AllowedShare the share
	// that may be by the model's QoS target.
	LateShare, AllowedShare float64
	// Cause is what is known to make queries late, in words: an agent lacks CPU; "": nothing is.
	Cause string
}

const (
	// minQueries is the number of queries from which a minute says anything about a model: of
	// nine, one late query is more than three standard deviations explain.
	minQueries = 20
	// manySigmas is by how many standard deviations of a minute's share of late queries the share
	// must exceed the allowed one: three are exceeded by chance in one minute of 700.
	manySigmas = 3
)

// missesTarget reports whether more queries were late than chance explains; with a known cause,
// whether more were late than may be.
func (l *Lateness) missesTarget() bool {
	if l.Queries < minQueries {
		return false
	}
	if l.Cause != "" {
		return l.LateShare > l.AllowedShare
	}
	sigma := math.Sqrt(l.AllowedShare * (1 - l.AllowedShare) / l.Queries)
	return l.LateShare > l.AllowedShare+manySigmas*sigma
}

func (l *Lateness) String() string {
	text := fmt.Sprintf("%.1f %% of the last minute's queries for %s were late or failed, and "+
		"%.2g %% may be", 100*l.LateShare, l.Model, 100*l.AllowedShare)
	if l.Cause != "" {
		text += ": " + l.Cause
	}
	return text
}

const (
	// evidenceFor is how long a fleet must have been as desired until its lateness says something
	// about it: lateness is counted over a minute, and a queue of before is gone 15 s later.
	evidenceFor = 75 * time.Second
	// lowering and raising are the factors of one step. A step down is as large as the default
	// headroom, and a fleet that is short by half takes five of them. A step up is small, since
	// each may make queries late: with 1.02, three of a hundred fleets still have half as many more
	// machines as they need after 45 days in time. Steps down of 1.05 to 1.5 and up of 1.14 pass the
	// tests, too; a large step down rents machines that nobody needs.
	lowering, raising = 1 / 1.15, 1.05
	// minShare bounds what lateness may cost: four times the machines. Where a profile is so wrong,
	// more machines are not the cure; the reason stays in the plan.
	minShare = 0.25
	// A share rises when the target was met for firstHold. The time doubles, up to maxHold, each
	// time that queries are late again after a rise, so that the steps that a steady load takes
	// grow with the logarithm of time. If the first is an hour, a fleet that was late still costs
	// 15 % more after a day in time; two minutes pass the tests, too.
	firstHold, maxHold = 10 * time.Minute, 24 * time.Hour
)

// A SafeLoad is which share of what a fleet is expected to serve may be planned for, by how late
// the queries of a fleet were that was planned to serve them. Invariant: minShare <= Share <= 1.
type SafeLoad struct {
	Share float64
	Why   string // it is below 1, in words
	// Hold is how long the target must be met until Share rises.
	Hold time.Duration

	last    time.Duration // the last observation; 0: none yet
	settled time.Duration // for how long the fleet has been as desired with this share
	met     time.Duration // for how long it has met the target since the last step
	raised  bool          // the last step was one up
	late    string        // which model misses its target now; "": none
}

// newSafeLoad returns the safe load of a fleet of which nothing is known.
func newSafeLoad() SafeLoad { return SafeLoad{Share: 1, Hold: firstHold} }

// observe takes how late the queries of the last minute were. exact says that the fleet is as
// desired and all of it serves, and carries that this was planned for the load that it gets: where
// it was not, that queries are late says nothing about which load is safe. It reports whether the
// share has changed.
func (s *SafeLoad) observe(now time.Duration, exact, carries bool,
	models []Lateness) (changed bool) {
	passed := now - s.last
	if s.last == 0 || passed < 0 {
		passed = 0
	}
	s.last = now
	s.late = ""
	worst := 0.0
	for i := range models {
		m := &models[i]
		if m.missesTarget() && m.LateShare-m.AllowedShare > worst {
			worst, s.late = m.LateShare-m.AllowedShare, m.String()
		}
	}
	if !exact {
		s.settled = 0
		return false
	}
	s.settled += passed
	if s.settled < evidenceFor {
		return false
	}
	if s.late != "" {
		s.met = 0
		if !carries || s.Share <= minShare {
			return false
		}
		if s.raised {
			s.Hold = min(2*s.Hold, maxHold)
		}
		s.Share, s.Why = max(minShare, s.Share*lowering), s.late
		s.raised, s.settled = false, 0
		return true
	}
	s.met += passed
	switch {
	case s.Share == 1 && s.met >= 4*s.Hold && s.Hold > firstHold:
		s.Hold, s.met = max(firstHold, s.Hold/2), 0
	case s.Share < 1 && s.met >= s.Hold:
		s.Share = min(1, s.Share*raising)
		if s.Share == 1 {
			s.Why = ""
		}
		s.raised, s.met, s.settled = true, 0, 0
		return true
	}
	return false
}

// describe says in words that less than all is planned for, and why; "" where all is.
func (s *SafeLoad) describe() string {
	if s.Share >= 1 {
		return ""
	}
	return fmt.Sprintf("the fleet is planned to be loaded to %.0f %% of what it is expected to "+
		"serve: %s", 100*s.Share, s.Why)
}
