package colocate

import (
	"fmt"
	"iter"
	"math"
	"time"
)

// A Slowdown is by what the time of a run is multiplied while so many runs of each model are under
// way on its machine, itself included. It is above 0. Models are numbers of the caller's.
type Slowdown func(model int, running []int) float64

// A Machine times the runs on lanes that share it. Times must not run backwards.
type Machine struct {
	slowdown Slowdown
	running  []int     // runs under way, by model
	factors  []float64 // scratch, by model
	runs     []run     // by lane
	names    []int     // of the lanes, as Moved calls them
	moved    []int     // lanes whose runs end at another time since they were last asked for
}

// A run is what a lane does. It has left so much of its time alone, as of since.
type run struct {
	on     bool
	isNew  bool
	model  int
	left   float64 // ns
	factor float64
	since  time.Duration
	end    time.Duration
}

// NewMachine returns a machine of so many lanes, which run so many models.
func NewMachine(slowdown Slowdown, lanes, models int) *Machine {
	m := &Machine{
		slowdown: slowdown, running: make([]int, models), factors: make([]float64, models),
		runs: make([]run, lanes),
	}
	for lane := range lanes {
		m.names = append(m.names, lane)
	}
	return m
}

// Start starts a run on an idle lane that takes so long where nothing slows it down.
func (m *Machine) Start(now time.Duration, lane, model int, alone time.Duration) {
	m.runs[lane] = run{on: true, isNew: true, model: model, left: float64(alone), since: now}
	m.running[model]++
	m.Retime(now)
}

// Stop ends the run of a lane, whether it is done or not.
func (m *Machine) Stop(now time.Duration, lane int) {
	r := &m.runs[lane]
	if !r.on {
		return
	}
	r.on = false
	m.running[r.model]--
	m.Retime(now)
}

// Retime times all runs anew. Start and Stop do so themselves; the caller does so when
// the slowdowns have changed.
func (m *Machine) Retime(now time.Duration) {
	for model, n := range m.running {
		if n > 0 {
			m.factors[model] = m.slowdown(model, m.running)
		}
	}
	for lane := range m.runs {
		r := &m.runs[lane]
		if !r.on || r.factor == m.factors[r.model] {
			continue
		}
		if !r.isNew {
			r.left = max(0, r.left-float64(now-r.since)/r.factor)
		}
		r.isNew, r.factor, r.since = false, m.factors[r.model], now
		if end := now + time.Duration(math.Ceil(r.left*r.factor)); end != r.end {
			r.end = end
			m.moved = append(m.moved, lane)
		}
	}
}

// Running is the number of runs under way of each model. The caller must not change it.
func (m *Machine) Running() []int { return m.running }

// Moved yields the lanes whose runs end at another time than when it was last called, or are new,
// and when they end now if nothing else starts or stops.
func (m *Machine) Moved() iter.Seq2[int, time.Duration] {
	return func(yield func(int, time.Duration) bool) {
		for _, lane := range m.moved {
			if r := &m.runs[lane]; r.on && !yield(m.names[lane], r.end) {
				break
			}
		}
		m.moved = m.moved[:0]
	}
}

// A Sharing says which lanes of a pool share machines, and how that slows them down. The models of
// Slowdown are numbered as they are simulated, families' variants one by one.
type Sharing struct {
	Machines [][]Lanes
	Slowdown Slowdown
}

// Lanes are lanes of one type.
type Lanes struct {
	Type  string
	Count int
}

// A Seat is a lane's place on a machine; the machine is nil if it shares none.
type Seat struct {
	Machine *Machine
	Lane    int
}

// Seats gives each of the lanes, of which the types are told, its seat: each machine takes the
// first lanes of its types that have none, and calls them by their indices.
func (s *Sharing) Seats(types []string, models int) ([]Seat, error) {
	seats, free := make([]Seat, len(types)), map[string][]int{}
	for i, name := range types {
		free[name] = append(free[name], i)
	}
	for i, its := range s.Machines {
		var all []int
		for _, l := range its {
			if l.Count < 0 || l.Count > len(free[l.Type]) {
				return nil, fmt.Errorf("machine %d has %d lanes of %s, and %d are left", i, l.Count,
					l.Type, len(free[l.Type]))
			}
			all = append(all, free[l.Type][:l.Count]...)
			free[l.Type] = free[l.Type][l.Count:]
		}
		m := NewMachine(s.Slowdown, len(all), models)
		m.names = all
		for k, lane := range all {
			seats[lane] = Seat{m, k}
		}
	}
	return seats, nil
}
