package match

import (
	"maps"
	"math"
	"slices"
)

// policies maps each policy's name to a function that makes it for one shard.
var policies = map[string]func(m *Matcher) policy{
	"horizon":            func(*Matcher) policy { return &horizon{} },
	"kairos":             func(*Matcher) policy { return &kairos{} },
	"fcfs":               func(*Matcher) policy { return &fifo{} },
	"drs":                func(*Matcher) policy { return &fifo{bySize: true} },
	"clockwork-earliest": func(*Matcher) policy { return &queues{pick: pickEarliest} },
	"clockwork-cheapest": func(*Matcher) policy { return &queues{pick: pickCheapest} },
	"round-robin":        func(*Matcher) policy { return &queues{pick: new(roundRobin).pickLane} },
	"random":             func(*Matcher) policy { return &queues{pick: pickRandom} },
	"least-outstanding":  func(*Matcher) policy { return &queues{pick: pickLeastOutstanding} },
	"power-of-two":       func(*Matcher) policy { return &queues{pick: pickOfTwo} },
}

// DefaultPolicy is the policy of a Config that names none.
const DefaultPolicy = "horizon"

// Policies lists the names that [Config.Policy] accepts, in alphabetical order.
func Policies() []string { return slices.Sorted(maps.Keys(policies)) }

// newPolicy makes the policy of one shard.
func (m *Matcher) newPolicy() policy {
	if m.cfg.NewChooser != nil {
		return chooserPolicy{m.cfg.NewChooser()}
	}
	return policies[m.cfg.Policy](m)
}

// fifo gives the oldest query to the first open lane that may have it, the fastest type first. This
// is fcfs, by which RIBBON serves. With bySize it is drs (DeepRecSys): queries above the threshold
// go only to base types and the others only to auxiliary types, unless the shard has no such lane
// that holds the model.
type fifo struct {
	bySize bool
	kinds  []*queueClass
}

// A queueClass is the queries for a family, or with bySize the small or the large ones of them.
type queueClass struct {
	queue
	family *family
	large  bool
}

func (f *fifo) enqueueArrival(s *shard, q *query) {
	large := f.bySize && q.batch > s.m.cfg.Threshold
	i := slices.IndexFunc(f.kinds,
		func(k *queueClass) bool { return k.family == q.family && k.large == large })
	if i < 0 {
		f.kinds = slices.DeleteFunc(f.kinds, func(k *queueClass) bool { return k.queries.Len() == 0 })
		i = len(f.kinds)
		f.kinds = append(f.kinds, &queueClass{family: q.family, large: large})
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
			if l := f.firstOpenLane(s, q, k.large); l != nil {
				oldest, to = q, l
			}
		}
		if oldest == nil || !s.assignInTime(oldest, to) {
			return
		}
	}
}

// firstOpenLane returns the first open lane for q, or nil.
func (f *fifo) firstOpenLane(s *shard, q *query, large bool) *lane {
	if f.bySize {
		found := false
		for _, l := range s.lanes {
			if l.isUsable() && l.typ.base == large && l.endsAfter(q, l.start()) {
				if l.open() {
					return l
				}
				found = true
			}
		}
		if found {
			return nil
		}
	}
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

// queues queues each query, when it arrives, at one of the lanes that may have it, which pick
// chooses. Of these it gets only those that very likely end after the query, if there are any.
type queues struct {
	pick  func(s *shard, q *query, among []*lane) *lane
	among []*lane // scratch
}

func (p *queues) enqueueArrival(s *shard, q *query) {
	p.among = p.among[:0]
	for _, l := range s.lanes {
		if l.isUsable() && l.endsAfter(q, l.start()+l.queue.work) {
			p.among = append(p.among, l)
		}
	}
	if len(p.among) == 0 {
		for _, l := range s.lanes {
			if l.isUsable() && l.canServe(q) {
				p.among = append(p.among, l)
			}
		}
	}
	if len(p.among) > 0 {
		l := p.pick(s, q, p.among)
		_, latency := l.inTime(q, s.m.remainingTime(q)-l.start()-l.queue.work)
		l.queue.push(q, latency)
	}
}

// maxMoved is how many queries of one queue are offered to other lanes in a round.
const maxMoved = 64

func (p *queues) assignQueries(s *shard) {
	s.leaveEndingLanes(p)
	for _, l := range s.lanes {
		for q := l.queue.queries.First(); q != nil && l.open(); {
			next := q.inQueue.Next()
			s.assignInTime(q, l) // unless l ends too soon for q
			q = next
		}
	}
}

// leaveEndingLanes lets the queries arrive again that are in the queue of a lane that is now to end
// before they do.
func (s *shard) leaveEndingLanes(p policy) {
	for _, l := range s.lanes {
		q := l.queue.queries.First()
		for range maxMoved {
			if q == nil || l.endsAfter(q, l.start()) {
				break
			}
			next := q.inQueue.Next()
			l.queue.remove(q)
			p.enqueueArrival(s, q)
			q = next
		}
	}
}

// finishTime returns the time, in ms from now, at which q would be done if it joined the end of l's
// queue, and the variant that would run.
func (l *lane) finishTime(q *query) (model int, at float64) {
	wait := l.start() + l.queue.work
	model, latency := l.inTime(q, l.m.remainingTime(q)-wait)
	return model, wait + latency
}

// assignInTime sends a waiting query to a lane, which runs the most accurate variant that is in
// time, else the fastest.
func (s *shard) assignInTime(q *query, l *lane) bool {
	model, _ := l.inTime(q, s.m.remainingTime(q)-l.start())
	return s.assignToLane(q, l, model, 0)
}

// countOutstanding returns how many queries l holds or has queued.
func (l *lane) countOutstanding() int { return len(l.held) + l.queue.queries.Len() }

// pickEarliest and pickCheapest are two variants of Clockwork. Among the lanes where q would meet
// its QoS target, pickEarliest takes the one that finishes first, and pickCheapest one of the
// cheapest type (least C_j; of these the first to finish). If there is no such lane, both take the
// one that finishes first.
func pickEarliest(s *shard, q *query, among []*lane) *lane { return pickInTime(s, q, among, false) }

func pickCheapest(s *shard, q *query, among []*lane) *lane { return pickInTime(s, q, among, true) }

func pickInTime(s *shard, q *query, among []*lane, cheapest bool) (best *lane) {
	left := s.m.remainingTime(q)
	finish, cost := math.Inf(1), math.Inf(1)
	for _, l := range among {
		model, f := l.finishTime(q)
		c := math.Inf(1)
		if cheapest && f <= left {
			c = l.typ.coefficient[model]
		}
		if best == nil || c < cost || c == cost && f < finish {
			best, finish, cost = l, f, c
		}
	}
	return best
}

// roundRobin is the state of round-robin: the index of the next lane.
type roundRobin struct{ next int }

func (t *roundRobin) pickLane(s *shard, _ *query, among []*lane) *lane {
	for {
		l := s.lanes[t.next%len(s.lanes)]
		t.next++
		if slices.Contains(among, l) {
			return l
		}
	}
}

func pickRandom(s *shard, _ *query, among []*lane) (chosen *lane) {
	for i, l := range among { // a draw for each lane, as the recordings in leader/testdata have it
		if s.m.rng.IntN(i+1) == 0 {
			chosen = l
		}
	}
	return chosen
}

func pickLeastOutstanding(_ *shard, _ *query, among []*lane) *lane {
	return slices.MinFunc(among,
		func(a, b *lane) int { return a.countOutstanding() - b.countOutstanding() })
}

// pickOfTwo draws two lanes and takes the one with fewer outstanding queries.
func pickOfTwo(s *shard, q *query, among []*lane) *lane {
	a, b := pickRandom(s, q, among), pickRandom(s, q, among)
	if b.countOutstanding() < a.countOutstanding() {
		return b
	}
	return a
}

// ThresholdSearch finds the threshold of drs by hill climbing, as DeepRecSys does. From half the
// largest batch size it moves in steps of a quarter of the largest as long as that raises the
// throughput, then in half those steps, down to 1 % of the largest. throughput returns the
// throughput at a threshold, in any unit; it is called once per threshold. The search ends at its
// first error.
func ThresholdSearch(largest int, throughput func(threshold int) (float64, error)) (threshold int,
	best float64, err error) {
	known := map[int]float64{}
	try := func(t int) (float64, error) {
		v, ok := known[t]
		if !ok {
			var err error
			if v, err = throughput(t); err != nil {
				return 0, err
			}
			known[t] = v
		}
		return v, nil
	}
	threshold = largest / 2
	if best, err = try(threshold); err != nil {
		return 0, 0, err
	}
	for step := largest / 4; step >= max(1, largest/100); step /= 2 {
		for moved := true; moved; {
			moved = false
			for _, t := range []int{threshold - step, threshold + step} {
				if t < 0 || t > largest {
					continue
				}
				v, err := try(t)
				if err != nil {
					return 0, 0, err
				}
				if v > best {
					threshold, best, moved = t, v, true
				}
			}
		}
	}
	return threshold, best, nil
}
