package renting

import (
	"fmt"
	"math"
	"time"

	"github.com/muster-serve/muster/leader/rent"
)

// A Tracking rents machines of one kind by how busy they are, in place of a plan: as Kubernetes's
// HorizontalPodAutoscaler does it by its defaults, and with it most who serve models today.
type Tracking struct {
	Kind rent.Kind
	// Share is the share of their time in which machines shall run queries, and Least and Most are
	// how many machines there may be.
	Share       float64
	Least, Most int
}

// The autoscaler's defaults (kubernetes.io, Horizontal Pod Autoscaling): it looks every 15 s, lets a
// tenth more or less pass, and shrinks to the most that it wanted in the last five minutes. What it
// looks at is the mean of a minute.
const (
	trackEvery     = 15 * time.Second
	trackMean      = time.Minute
	trackTolerance = 0.1
	trackCalm      = 5 * time.Minute
	// trackLearn is the time of whose queries the time of a run is the mean. A run has a sample of
	// the day's queries: those of a minute are so few that chance would make the fleet larger.
	trackLearn = 30 * time.Minute
)

// A tracker is what a Tracking remembers.
type tracker struct {
	uses  []trackedUse
	wants []trackedWant // at increasing times
}

// A trackedUse is what happened since the last step, until at.
type trackedUse struct {
	at       time.Duration
	machines float64 // s that machines served
	busy     float64 // s in which they ran queries
	queries  float64
}

type trackedWant struct {
	at    time.Duration
	count int
}

func (t *tracker) observe(u trackedUse) {
	t.uses = append(t.uses, u)
	for u.at-t.uses[0].at >= trackLearn {
		t.uses = t.uses[1:]
	}
}

// use is the share of the last minute in which machines ran queries; false if none served.
func (t *tracker) use(now time.Duration) (share float64, ok bool) {
	var long, minute trackedUse
	for _, u := range t.uses {
		long.busy, long.queries = long.busy+u.busy, long.queries+u.queries
		if now-u.at < trackMean {
			minute.machines, minute.queries = minute.machines+u.machines, minute.queries+u.queries
		}
	}
	if minute.machines == 0 || long.queries == 0 {
		return 0, false
	}
	return minute.queries * long.busy / long.queries / minute.machines, true
}

// want is how many machines there shall be, where serving of them serve and desired are desired.
func (t *tracker) want(now time.Duration, cfg *Tracking, serving, desired int) int {
	count := desired
	if share, ok := t.use(now); ok && serving > 0 {
		if ratio := share / cfg.Share; math.Abs(ratio-1) > trackTolerance {
			count = int(math.Ceil(float64(serving) * ratio))
		}
	}
	t.wants = append(t.wants, trackedWant{now, count})
	for now-t.wants[0].at > trackCalm {
		t.wants = t.wants[1:]
	}
	if count < desired { // shrink to the most of the last minutes
		for _, w := range t.wants {
			count = max(count, min(w.count, desired))
		}
	}
	return min(max(count, cfg.Least), cfg.Most)
}

// track desires as many machines as the Tracking wants, and reports whether that changed.
func (r *Rental) track(rate float64) (changes bool) {
	used := r.rented
	used.at, used.queries = r.now, rate*step.Seconds()
	r.tracker.observe(used)
	r.rented = trackedUse{}
	if r.planned >= 0 && r.now-r.planned < trackEvery {
		return false
	}
	r.planned = r.now
	its := r.cfg.Tracking
	serving := 0
	for _, m := range r.machines {
		if m.State == rent.Running && !m.Drained {
			serving++
		}
	}
	want := r.tracker.want(r.now, its, serving, r.desired[its.Kind])
	if want == r.desired[its.Kind] {
		return false
	}
	r.tell(fmt.Sprintf("%d of %s instead of %d", want, its.Kind, r.desired[its.Kind]))
	r.desired = map[rent.Kind]int{its.Kind: want}
	r.result.Changes += r.counted(1)
	return true
}
