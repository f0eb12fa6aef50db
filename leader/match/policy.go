package match

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// policies maps each policy's name to a function that makes it for one shard.
var policies = map[string]func() policy{
	"horizon": func() policy { return &horizon{} },
	"kairos":  func() policy { return &kairos{} },
	"fcfs":    func() policy { return &fifo{} },
}

// DefaultPolicy is the policy of a Config that names none.
const DefaultPolicy = "horizon"

// Policies lists the names that [Config.Policy] accepts, in alphabetical order.
func Policies() []string { return slices.Sorted(maps.Keys(policies)) }

// former are policies that agents had up to version 0.1.0: rivals, which are choosers now, in
// sim/baselines and in the module reproduce.
var former = []string{
	"clockwork-cheapest", "clockwork-earliest", "drs", "least-outstanding", "power-of-two", "random",
	"round-robin",
}

// IsFormerPolicy reports whether name is of a policy that production no longer has.
func IsFormerPolicy(name string) bool { return slices.Contains(former, name) }

// CheckPolicy returns nil if name is one of [Policies] or of others, else an error that lists them,
// and of a former policy says where it went.
func CheckPolicy(name string, others ...string) error {
	all := append(Policies(), others...)
	there := strings.Join(all, ", ")
	switch {
	case slices.Contains(all, name):
		return nil
	case IsFormerPolicy(name):
		return fmt.Errorf("policy %q is no policy of production any more, there are: %s; "+
			"reproduce/ in Muster's repository has it", name, there)
	}
	return fmt.Errorf("policy %q is unknown, there are: %s", name, there)
}

// newPolicy makes the policy of one shard.
func (m *Matcher) newPolicy() policy {
	if m.cfg.NewChooser != nil {
		return chooserPolicy{m.cfg.NewChooser()}
	}
	return policies[m.cfg.Policy]()
}

// fifo gives the oldest query to the first open lane that may have it, the fastest type first. This
// is fcfs, by which RIBBON serves.
type fifo struct{ kinds []*queueClass }

// A queueClass is the queries for a family.
type queueClass struct {
	queue
	family *family
}

func (f *fifo) enqueueArrival(_ *shard, q *query) {
	i := slices.IndexFunc(f.kinds, func(k *queueClass) bool { return k.family == q.family })
	if i < 0 {
		f.kinds = slices.DeleteFunc(f.kinds, func(k *queueClass) bool { return k.queries.Len() == 0 })
		i = len(f.kinds)
		f.kinds = append(f.kinds, &queueClass{family: q.family})
	}
	f.kinds[i].push(q, 0)
}

func (f *fifo) assignQueries(s *shard) {
	for {
		var oldest *query
		var to *lane
		for _, k := range f.kinds {
			q := k.queries.First()
			if q == nil || oldest != nil && byArrival(oldest, q) < 0 {
				continue
			}
			if l := s.firstOpenLane(q); l != nil {
				oldest, to = q, l
			}
		}
		if oldest == nil || !s.assignInTime(oldest, to) {
			return
		}
	}
}

// firstOpenLane returns the first open lane for q, or nil.
func (s *shard) firstOpenLane(q *query) *lane {
	for _, l := range s.lanes {
		if l.open() && l.endsAfter(q, l.start()) {
			return l
		}
	}
	return nil
}

// endsAfter reports whether l serves q and, if q starts there in start ms, very likely ends after
// q does, by the variant that assignInTime chooses.
func (l *lane) endsAfter(q *query, start float64) bool {
	model, _ := l.inTime(q, l.m.remainingTime(q)-start)
	return model >= 0 && l.lastsFrom(start, l.latencyTable(model), q.batch)
}

// assignInTime sends a waiting query to a lane, which runs the most accurate variant that is in
// time, else the fastest.
func (s *shard) assignInTime(q *query, l *lane) bool {
	model, _ := l.inTime(q, s.m.remainingTime(q)-l.start())
	return s.assignToLane(q, l, model, 0)
}
