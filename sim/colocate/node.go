package colocate

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/place"
)

// A node's models have service times that follow from their profiles, which have none: a worker
// that has its share of the most queries/s of a machine is busy for this part of the time, and the
// target is this many mean times alone. The times are log-normal.
const (
	busyAtMost = 0.9
	targetRuns = 20
	spread     = 0.5 // standard deviation of the logarithm
	percentile = 0.95
)

// A Manager decides every period what each of two tenants has from then on, and reports whether
// that has changed, as [place.Machine.Adjust] does.
type Manager func(now [2]place.Tenant) (next [2]place.Tenant, changed bool)

// A Node is one machine with two models, each with a queue of its own, of which its workers take
// the queries in the order of their arrival. Workers and ways move between the models without
// loading anything; a worker that runs moves when its run has ended.
type Node struct {
	Machine  place.Machine
	Profiles [2]*place.Profile
	// Rates are the queries/s that arrive for each model at a time since the start; MostRates are
	// the highest that they ever are.
	Rates     [2]func(at time.Duration) float64
	MostRates [2]float64
	// Workers and Ways are those at the start.
	Workers, Ways [2]int
	Manager       Manager // nil: nothing is moved
	Period        time.Duration
	Seed          uint64
}

// A Period is what was seen of one period, and what the models have from then on.
type Period struct {
	End           time.Duration
	Traffic, Tail [2]float64 // queries/s; 95 % quantile of the latencies by the target
	Served        [2]int
	Workers, Ways [2]int
	// Moved is how long it took until the last worker had moved that the manager moved at the end
	// of the period; 0 if it moved none.
	Moved time.Duration
}

// A Run is the result of a node's simulation.
type Run struct {
	Periods []Period
	// Arrived and Served are the queries of each model. All that arrived are served in the end, for
	// nothing is refused.
	Arrived, Served [2]int
}

// Target is the latency within which a model's queries should be answered.
func Target(m place.Machine, p *place.Profile) time.Duration { return targetRuns * meanAlone(m, p) }

func meanAlone(m place.Machine, p *place.Profile) time.Duration {
	return time.Duration(busyAtMost / p.QPS[1][m.Ways] * float64(time.Second))
}

// Steady is a rate that does not change.
func Steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// A job is a query that waits or runs.
type job struct{ arrived, work time.Duration }

// A worker runs the queries of a tenant; -1: of none.
type worker struct {
	tenant int
	leaves bool // when its run has ended
	busy   bool
	job    job
	end    time.Duration
}

// A node is a Node under way.
type node struct {
	*Node
	now     time.Duration
	random  *rand.Rand
	machine *Machine
	ways    []int
	workers []worker
	has     [2]int // workers that a tenant is to have
	next    [2]time.Duration
	queue   [2][]job
	latency [2][]float64 // of the period, by the target
	arrived [2]int       // in the period
	tenants [2]place.Tenant
	ordered time.Duration // when the last move was ordered that has not come about; 0: none
	run     *Run
}

const forever = time.Duration(math.MaxInt64)

// Simulate runs the node for so long, and then until all that arrived is served.
func (n *Node) Simulate(length time.Duration) *Run {
	s := &node{
		Node: n, random: rand.New(rand.NewPCG(n.Seed, 21)), ways: n.Ways[:], has: n.Workers,
		workers: make([]worker, n.Machine.Cores), run: &Run{},
	}
	s.ways = slices.Clone(s.ways)
	s.machine = NewMachine(Shared(n.Machine, n.Profiles[:], s.ways), n.Machine.Cores, 2)
	for i := range s.workers {
		s.workers[i].tenant = -1
	}
	for i := range s.tenants {
		s.tenants[i] = place.Tenant{Profile: n.Profiles[i], Workers: n.Workers[i], Ways: n.Ways[i]}
		s.next[i] = s.nextArrival(i, 0, length)
	}
	s.assignWorkers()
	tick := n.Period
	for {
		at, lane := tick, -1
		for i := range s.workers {
			if w := &s.workers[i]; w.busy && w.end < at {
				at, lane = w.end, i
			}
		}
		from := -1
		for i, next := range s.next {
			if next < at {
				at, lane, from = next, -1, i
			}
		}
		s.now = at
		switch {
		case from >= 0:
			s.arrived[from]++
			s.run.Arrived[from]++
			s.queue[from] = append(s.queue[from], job{at, s.drawWork(from)})
			s.next[from] = s.nextArrival(from, at, length)
			s.serve(from)
		case lane >= 0:
			s.done(lane)
		default:
			s.endPeriod()
			tick += n.Period
			if at >= length && s.run.Served == s.run.Arrived || at > length+time.Hour {
				return s.run
			}
		}
	}
}

// nextArrival is when the next query of a tenant arrives after a time, forever if none does.
func (s *node) nextArrival(tenant int, after, length time.Duration) time.Duration {
	most := s.MostRates[tenant]
	for most > 0 {
		after += 1 + time.Duration(s.random.ExpFloat64()/most*1e9)
		if after >= length {
			break
		}
		if s.random.Float64()*most < s.Rates[tenant](after) {
			return after
		}
	}
	return forever
}

func (s *node) drawWork(tenant int) time.Duration {
	mean := float64(meanAlone(s.Machine, s.Profiles[tenant]))
	return 1 + time.Duration(mean*math.Exp(spread*s.random.NormFloat64()-spread*spread/2))
}

// serve gives idle workers of a tenant what waits.
func (s *node) serve(tenant int) {
	for lane := range s.workers {
		w := &s.workers[lane]
		if len(s.queue[tenant]) == 0 {
			return
		}
		if w.tenant != tenant || w.busy || w.leaves {
			continue
		}
		w.job, w.busy = s.queue[tenant][0], true
		s.queue[tenant] = s.queue[tenant][1:]
		s.machine.Start(s.now, lane, tenant, w.job.work)
		s.applyMoved()
	}
}

func (s *node) applyMoved() {
	for lane, end := range s.machine.Moved() {
		s.workers[lane].end = end
	}
}

func (s *node) done(lane int) {
	w := &s.workers[lane]
	tenant := w.tenant
	s.latency[tenant] = append(s.latency[tenant], float64(s.now-w.job.arrived)/
		float64(Target(s.Machine, s.Profiles[tenant])))
	s.run.Served[tenant]++
	w.busy = false
	s.machine.Stop(s.now, lane)
	s.applyMoved()
	if w.leaves {
		w.leaves, w.tenant = false, -1
		s.assignWorkers()
	}
	s.serve(tenant)
}

// assignWorkers gives free workers to tenants that lack some, and takes surplus ones back: idle
// workers at once, others when their runs have ended.
func (s *node) assignWorkers() {
	for tenant := range s.has {
		more := s.has[tenant]
		for i := range s.workers {
			if w := &s.workers[i]; w.tenant == tenant && !w.leaves {
				more--
			}
		}
		for i := range s.workers { // a worker that was to leave may stay after all
			if w := &s.workers[i]; more > 0 && w.tenant == tenant && w.leaves {
				w.leaves = false
				more--
			}
		}
		for _, busy := range []bool{false, true} {
			for i := range s.workers {
				if w := &s.workers[i]; more < 0 && w.tenant == tenant && !w.leaves &&
					w.busy == busy {
					if w.leaves = busy; !busy {
						w.tenant = -1
					}
					more++
				}
			}
		}
	}
	settled := true
	for tenant := range s.has {
		more := s.has[tenant]
		for i := range s.workers {
			if w := &s.workers[i]; w.tenant == tenant && !w.leaves {
				more--
			}
		}
		for i := range s.workers {
			if w := &s.workers[i]; more > 0 && w.tenant < 0 {
				w.tenant = tenant
				more--
			}
		}
		settled = settled && more == 0
		s.serve(tenant)
	}
	if settled && s.ordered > 0 {
		s.run.Periods[len(s.run.Periods)-1].Moved = s.now - s.ordered
		s.ordered = 0
	}
}

// endPeriod ends a period: the manager sees what happened and decides.
func (s *node) endPeriod() {
	p := Period{End: s.now}
	for i := range s.tenants {
		t := &s.tenants[i]
		t.Traffic = float64(s.arrived[i]) / s.Period.Seconds()
		p.Served[i] = len(s.latency[i])
		for _, waits := range s.queue[i] { // those are late too
			s.latency[i] = append(s.latency[i], float64(s.now-waits.arrived)/
				float64(Target(s.Machine, s.Profiles[i])))
		}
		t.Tail = tailQuantile(s.latency[i])
		p.Traffic[i], p.Tail[i] = t.Traffic, t.Tail
		s.latency[i], s.arrived[i] = s.latency[i][:0], 0
	}
	moved := false
	if s.Manager != nil {
		next, changed := s.Manager(s.tenants)
		if s.tenants = next; changed {
			for i, t := range next {
				moved = moved || s.has[i] != t.Workers
				s.has[i], s.ways[i] = t.Workers, t.Ways
			}
			s.machine.Retime(s.now)
			s.applyMoved()
		}
	}
	for i, t := range s.tenants {
		p.Workers[i], p.Ways[i] = t.Workers, t.Ways
	}
	s.run.Periods = append(s.run.Periods, p)
	if moved {
		s.ordered = s.now
		s.assignWorkers()
	}
}

// tailQuantile is the 95 % quantile; 0 of none. It sorts the values.
func tailQuantile(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(percentile*float64(len(values))))]
}

// Sustains reports whether both models' tails were within their targets, taken over the periods
// from a time on: no more than one period in ten of each was late.
func (r *Run) Sustains(from, to time.Duration) bool {
	for i := range 2 {
		periods, late := 0, 0
		for _, p := range r.Periods {
			if p.End > from && p.End <= to {
				periods++
				if p.Tail[i] > 1 {
					late++
				}
			}
		}
		if 10*late > periods {
			return false
		}
	}
	return true
}
