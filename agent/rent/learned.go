package rent

import (
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles"
)

// What a leader has learned goes with what it desires, so that the next leader and a keeper that
// restarts know it. It alone makes another version of what is desired only where it has changed by
// more than learnedChange, for a person whose command expects the version before has to repeat it.
const learnedChange = 0.2

// historyEvery is how often the load of the last hours is told where it repeats and nothing else
// is to be told: the next leader takes what is missing from the period before, so that loads of 10
// min and more lack nothing. The 6 kB go to all members and onto disks each time.
const historyEvery = 10 * time.Minute

// noteLearned makes what the chooser has learned ready to be told, and tells it if it is news.
func (l *loop) noteLearned() {
	safe, boots := l.chooser.SafeLoad(), l.chooser.BootTimes()
	next := &control.LearnedRenting{SafeLoad: safe.Share, WhySafeLoad: safe.Why}
	for _, t := range slices.Sorted(maps.Keys(boots)) {
		next.Boots = append(next.Boots, &control.LearnedRenting_BootTime{
			Type: string(t), BootNs: int64(boots[t]),
		})
	}
	loads, age := l.chooser.History(l.now())
	for _, rate := range loads {
		next.Load = append(next.Load, float32(rate))
	}
	next.LoadAgeNs = int64(age)
	l.mu.Lock()
	l.learned, l.learnedAt = next, time.Now()
	l.mu.Unlock()
	old := l.chooser.Repeats() && l.manager.sinceStored() >= historyEvery
	d := l.manager.Desired()
	if d.GetKnown() && (old || isNews(d.GetLearned(), next)) {
		_ = l.setDesired(d, proto.CloneOf(d)) // the next round tries again
	}
}

// isNews reports whether what was learned differs much from what was told.
func isNews(told, learned *control.LearnedRenting) bool {
	differs := func(a, b float64) bool { return math.Abs(a-b) > learnedChange*max(a, b) }
	known := map[string]float64{}
	for _, b := range told.GetBoots() {
		known[b.GetType()] = float64(b.GetBootNs())
	}
	for _, b := range learned.GetBoots() {
		if differs(known[b.GetType()], float64(b.GetBootNs())) {
			return true
		}
	}
	was := told.GetSafeLoad()
	if was == 0 {
		was = 1
	}
	return differs(was, learned.GetSafeLoad())
}

// takeLearned takes over what leaders before have learned, as it was told so long ago.
func (l *loop) takeLearned(from *control.LearnedRenting, ago time.Duration) {
	boots := map[profiles.InstanceType]time.Duration{}
	for _, b := range from.GetBoots() {
		boots[profiles.InstanceType(b.GetType())] = time.Duration(b.GetBootNs())
	}
	l.chooser.SetBootTimes(boots)
	l.chooser.SetSafeLoad(from.GetSafeLoad(), from.GetWhySafeLoad())
	loads := make([]float64, len(from.GetLoad()))
	for i, rate := range from.GetLoad() {
		loads[i] = float64(rate)
	}
	l.chooser.SetHistory(l.now(), loads, time.Duration(from.GetLoadAgeNs())+ago)
}

// withAge returns what was learned as it is to be told so long after it was.
func withAge(learned *control.LearnedRenting, ago time.Duration) *control.LearnedRenting {
	if len(learned.GetLoad()) == 0 {
		return learned
	}
	learned = proto.CloneOf(learned)
	learned.LoadAgeNs += int64(max(0, ago))
	return learned
}

// Message returns what is desired as it is to be told now; nil: nothing is. The caller must not
// change it.
func (r *Manager) Message() *control.DesiredFleet {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.desired.GetLearned().GetLoad()) == 0 {
		return r.desired
	}
	d := proto.CloneOf(r.desired)
	d.Learned = withAge(d.Learned, time.Since(r.storedAt))
	return d
}

// withoutHistory returns what is desired without the load of the last hours, which nobody reads.
func withoutHistory(d *control.DesiredFleet) *control.DesiredFleet {
	if len(d.GetLearned().GetLoad()) == 0 {
		return d
	}
	d = proto.CloneOf(d)
	d.Learned.Load, d.Learned.LoadAgeNs = nil, 0
	return d
}
