// Package scaling simulates a fixed fleet whose agents hold one variant each and change it with the
// load, in virtual time: the experiments of Proteus (ASPLOS 2024).
//
// A system is either a rival (package placements), which divides queries among agents as
// they come, or Muster, whose matcher binds them late. Muster's lanes merge queries by
// runtime/queue/merge, as in production. The lanes of rivals do so too, or repeat the rules of
// Proteus's artifact (artifact.go), so that its numbers can be compared with.
package scaling

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/reproduce/placements"
)

// A Query is an arrival.
type Query struct {
	At     time.Duration
	Family int
}

// A Config is one run. Exactly one of Rival and Place is set.
type Config struct {
	Fleet   *placements.Fleet
	Queries []Query // by arrival
	Seed    uint64

	// Rival decides what agents hold and where queries go; SlackFit, what an agent runs.
	Rival placements.Rival
	// Batching is how lanes run several queries as one: a policy of runtime/queue/merge, or, for a
	// Rival, one of the Artifact policies.
	Batching names.MergePolicy

	// Place decides for Muster what agents hold; its matcher binds the queries.
	Place func(s *placements.State) error

	// Solves says when Place is called, second by second, besides at the start; nil means every 10
	// s. So it may be called at bursts.
	Solves func(second int, s *placements.State) bool
	// Forecast sets s.Forecast each second, before Solves is asked; nil means by [Window] of 20 s.
	Forecast func(s *placements.State)
	// Load is how long an agent loads a variant; it answers nothing meanwhile.
	Load time.Duration
	// Slow is by how much runs take longer than the fleet's latencies say, by type; nil: not at
	// all. The artifact's lanes know it, what decides and our lanes do not.
	Slow []float64
	// Learns says that, before Place is called, the latencies that it, the matcher and our lanes
	// reckon with become what runs have taken, by type and variant, where enough have ended.
	Learns bool
}

// A Second counts the queries that arrived in one second.
type Second struct {
	Arrived, Served int
	// Dropped queries were given up, or never answered. Late ones were answered after the target.
	Dropped, Late int
	// AfterASecond were answered more than 1 s after their arrival.
	AfterASecond int
	// Stuck is how many of Dropped had no outcome in the end.
	Stuck  int
	Points float64 // sum of the accuracies of what was served
}

// Add adds the counts of o.
func (s *Second) Add(o Second) {
	s.Arrived, s.Served = s.Arrived+o.Arrived, s.Served+o.Served
	s.Dropped, s.Late = s.Dropped+o.Dropped, s.Late+o.Late
	s.AfterASecond, s.Stuck = s.AfterASecond+o.AfterASecond, s.Stuck+o.Stuck
	s.Points += o.Points
}

// Violations is the share of queries that were dropped or late.
func (s Second) Violations() float64 {
	return share(s.Dropped+s.Late, s.Arrived)
}

// ByArtifact is the share that the artifact of Proteus counts: a query that takes more than 1 s is
// late, whatever its target, and one that has no outcome in the end does not count.
func (s Second) ByArtifact() float64 {
	return share(s.Dropped-s.Stuck+s.AfterASecond, s.Arrived-s.Stuck)
}

// Accuracy is the mean of what was served, in points; 0 if nothing was.
func (s Second) Accuracy() float64 {
	if s.Served == 0 {
		return 0
	}
	return s.Points / float64(s.Served)
}

func share(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// A Result is what a run counted.
type Result struct {
	Seconds []Second
	Total   Second
	// Families counts by family.
	Families []Second
	// Changes is how many agents got another variant after the start.
	Changes int
}

// window is over how many seconds accuracy is averaged for its largest drop.
const window = 10

// Drop is the largest drop of accuracy below 100 points in ten seconds.
func (r *Result) Drop() (drop float64) {
	for i := 0; i+window <= len(r.Seconds); i += window {
		var sum Second
		for _, s := range r.Seconds[i : i+window] {
			sum.Add(s)
		}
		if sum.Served > 0 {
			drop = max(drop, 100-sum.Accuracy())
		}
	}
	return drop
}

// A query is one without an outcome, or with one.
type query struct {
	at, due time.Duration
	family  int
	done    bool
	expires time.Duration // artifact.go
}

// A run is the state of a simulation.
type run struct {
	*Config
	state   *placements.State
	queries []query
	rng     *rand.Rand
	now     time.Duration
	events  events
	numbers uint64
	result  *Result
	system  system
	seen    []int // by agent: the placement that the system knows
}

// A system serves queries.
type system interface {
	arrived(id int)
	// placed tells that an agent holds another variant.
	placed(agent int)
	handle(e event)
}

type event struct {
	at     time.Duration
	number uint64
	what   any // a type of the system's
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func (r *run) push(at time.Duration, what any) {
	r.numbers++
	heap.Push(&r.events, event{max(at, r.now), r.numbers, what})
}

// Run simulates c. If ctx ends before, Run returns its error.
func Run(ctx context.Context, c *Config) (*Result, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	r := &run{
		Config: c, state: placements.NewState(c.Fleet), rng: rand.New(rand.NewPCG(c.Seed, 21)),
		result: &Result{Families: make([]Second, len(c.Fleet.Families))},
	}
	if c.Learns {
		its := *c.Fleet
		its.Latency = nil
		for _, of := range c.Fleet.Latency {
			var copied [][]time.Duration
			for _, l := range of {
				copied = append(copied, slices.Clone(l))
			}
			its.Latency = append(its.Latency, copied)
		}
		r.state.Fleet = &its
	}
	r.seen = make([]int, len(r.state.Agents))
	for _, q := range c.Queries {
		r.queries = append(r.queries, query{
			at: q.At, due: q.At + c.Fleet.Families[q.Family].Target, family: q.Family,
		})
	}
	last := 0
	if n := len(r.queries); n > 0 {
		last = int(r.queries[n-1].at / time.Second)
	}
	r.result.Seconds = make([]Second, last+1)
	var err error
	if r.system, err = r.newSystem(); err != nil {
		return nil, err
	}
	forecast := c.Forecast
	if forecast == nil {
		forecast = Window(20)
	}
	if err := r.place(); err != nil {
		return nil, err
	}
	r.result.Changes = 0
	next := 0
	for second := 0; second <= last; second++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		clear(r.state.Demand)
		for next < len(r.queries) && r.queries[next].at < time.Duration(second+1)*time.Second {
			q := &r.queries[next]
			r.until(q.at)
			r.now = q.at
			r.state.Demand[q.family]++
			r.system.arrived(next)
			r.sync()
			next++
		}
		r.until(time.Duration(second+1) * time.Second)
		r.now = time.Duration(second+1) * time.Second
		forecast(r.state)
		solve := (second+1)%10 == 0
		if c.Solves != nil {
			solve = c.Solves(second+1, r.state)
		}
		if solve && second < last {
			if err := r.place(); err != nil {
				return nil, err
			}
		}
	}
	r.until(r.now + 10*time.Minute)
	for i := range r.queries {
		if !r.queries[i].done {
			r.finish(i, -1, true)
		}
	}
	for _, s := range r.result.Seconds {
		r.result.Total.Add(s)
	}
	return r.result, nil
}

func (c *Config) validate() error {
	if err := c.Fleet.Validate(); err != nil {
		return err
	}
	if (c.Rival == nil) == (c.Place == nil) {
		return errors.New("one of Rival and Place is wanted")
	}
	for i, q := range c.Queries {
		if q.Family < 0 || q.Family >= len(c.Fleet.Families) || q.At < 0 ||
			i > 0 && q.At < c.Queries[i-1].At {
			return fmt.Errorf("query %d: family %d at %v, want a family of the fleet, by arrival",
				i,
				q.Family, q.At)
		}
	}
	return nil
}

func (r *run) newSystem() (system, error) {
	switch rival := r.Rival.(type) {
	case nil:
		return newMatched(r)
	case *placements.SlackFit:
		return &pulled{run: r, fit: rival, devices: make([]*device, len(r.state.Agents)),
			waiting: make([][]int, len(r.Fleet.Families))}, nil
	}
	if slices.Contains(artifactPolicies, r.Batching) {
		return &routed{run: r, lanes: make([]*artifactLane, len(r.state.Agents))}, nil
	}
	return newDrawn(r)
}

// place has the system place variants.
func (r *run) place() error {
	if m, ok := r.system.(*matched); ok && r.Learns {
		if err := m.learn(); err != nil {
			return err
		}
	}
	for k, f := range r.result.Families {
		r.state.Ended[k], r.state.Late[k] = uint64(f.Arrived), uint64(f.Dropped+f.Late)
	}
	decide := r.Place
	if r.Rival != nil {
		decide = r.Rival.Place
	}
	if err := decide(r.state); err != nil {
		return err
	}
	r.sync()
	return nil
}

// sync tells the system which agents hold another variant.
func (r *run) sync() {
	for i := range r.state.Agents {
		if placed := r.state.Agents[i].Placed; placed != r.seen[i] {
			r.seen[i] = placed
			r.result.Changes++
			r.system.placed(i)
		}
	}
}

// until handles the events up to a time.
func (r *run) until(t time.Duration) {
	for len(r.events) > 0 && r.events[0].at <= t {
		e := heap.Pop(&r.events).(event)
		r.now = e.at
		r.system.handle(e)
		r.sync()
	}
}

// finish gives a query its outcome: answered by a variant, or dropped if that is negative. stuck
// says that nobody has decided it.
func (r *run) finish(id, variant int, stuck bool) {
	q := &r.queries[id]
	if q.done {
		return
	}
	q.done = true
	s := Second{Arrived: 1}
	if variant < 0 {
		s.Dropped = 1
		if stuck {
			s.Stuck = 1
		}
	} else {
		s.Served, s.Points = 1, r.Fleet.Variants[variant].Accuracy
		if r.now > q.due {
			s.Late = 1
		}
		if r.now > q.at+time.Second {
			s.AfterASecond = 1
		}
	}
	r.result.Seconds[q.at/time.Second].Add(s)
	r.result.Families[q.family].Add(s)
}

// latency is how long a run of Sizes[size] queries takes.
func (r *run) latency(typ, variant, size int) time.Duration {
	l := r.Fleet.Latency[typ][variant][size]
	if r.Slow != nil {
		l = time.Duration(float64(l) * r.Slow[typ])
	}
	return l
}

// sizeFor is the index of the smallest size that holds n queries, or of the largest.
func (r *run) sizeFor(n int) int {
	for k, size := range r.Fleet.Sizes {
		if size >= n {
			return k
		}
	}
	return len(r.Fleet.Sizes) - 1
}

// EachSecond has Place called each second.
func EachSecond(int, *placements.State) bool { return true }

// Window returns a forecast: the most queries a second of the last seconds.
func Window(seconds int) func(*placements.State) {
	var past [][]float64
	return func(s *placements.State) {
		past = append(past, slices.Clone(s.Demand))
		past = past[max(0, len(past)-seconds):]
		for k := range s.Forecast {
			s.Forecast[k] = 0
			for _, p := range past {
				s.Forecast[k] = max(s.Forecast[k], p[k])
			}
		}
	}
}

// EWMA returns the forecast of Proteus's artifact: the exponentially weighted mean of the last 20
// s, with weights that fall by decay/(1+decay) a second.
func EWMA(decay float64) func(*placements.State) {
	var past [][]float64
	return func(s *placements.State) {
		past = append(past, slices.Clone(s.Demand))
		past = past[max(0, len(past)-20):]
		for k := range s.Forecast {
			sum, weights, w := 0.0, 0.0, 1.0
			for i := len(past) - 1; i >= 0; i-- {
				sum, weights = sum+w*past[i][k], weights+w
				w *= decay / (1 + decay)
			}
			s.Forecast[k] = sum / weights
		}
	}
}
