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

// noteLearned makes what the chooser has learned ready to be told, and tells it if it is news.
func (l *loop) noteLearned() {
	safe, boots := l.chooser.SafeLoad(), l.chooser.BootTimes()
	next := &control.LearnedRenting{SafeLoad: safe.Share, WhySafeLoad: safe.Why}
	for _, t := range slices.Sorted(maps.Keys(boots)) {
		next.Boots = append(next.Boots, &control.LearnedRenting_BootTime{
			Type: string(t), BootNs: int64(boots[t]),
		})
	}
	l.mu.Lock()
	l.learned = next
	l.mu.Unlock()
	d := l.manager.Desired()
	if d.GetKnown() && isNews(d.GetLearned(), next) {
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

// takeLearned takes over what leaders before have learned.
func (l *loop) takeLearned(from *control.LearnedRenting) {
	boots := map[profiles.InstanceType]time.Duration{}
	for _, b := range from.GetBoots() {
		boots[profiles.InstanceType(b.GetType())] = time.Duration(b.GetBootNs())
	}
	l.chooser.SetBootTimes(boots)
	l.chooser.SetSafeLoad(from.GetSafeLoad(), from.GetWhySafeLoad())
}
