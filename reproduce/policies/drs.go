package policies

import (
	"cmp"
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

// drs is DeepRecSys: first come, first served, but queries above the threshold go only to base types
// and the others only to auxiliary types, unless there is no such lane that serves them.
type drs struct {
	threshold int
	waiting   []match.WaitingQuery // scratch
	heads     map[class]bool       // classes of which no query can go anywhere; scratch
}

// A class is the queries for a model or family that may go to the same types.
type class struct {
	asked names.ModelKey
	large bool
}

// QueryArrived implements [match.Chooser].
func (*drs) QueryArrived(match.View, match.WaitingQuery) {}

// Choose implements [match.Chooser].
func (d *drs) Choose(v match.View) {
	d.waiting = slices.AppendSeq(d.waiting[:0], v.Waiting())
	slices.SortStableFunc(d.waiting, func(a, b match.WaitingQuery) int {
		return cmp.Compare(b.Waited(), a.Waited())
	})
	clear(d.heads)
	for _, q := range d.waiting {
		c := class{q.Asked(), q.BatchSize() > d.threshold}
		if d.heads[c] {
			continue
		}
		if l, ok := d.firstOpen(v, q, c.large); !ok || !v.Assign(q, l) {
			d.heads[c] = true
		}
	}
}

// firstOpen returns the first open lane for q.
func (d *drs) firstOpen(v match.View, q match.WaitingQuery,
	large bool) (first match.UsableLane, ok bool) {
	found := false
	for l := range v.UsableLanes() {
		if _, serves := l.Latency(q, l.Start()); serves && l.IsBase() == large {
			if l.IsOpen() {
				return l, true
			}
			found = true
		}
	}
	if found {
		return first, false
	}
	for l := range v.UsableLanes() {
		if _, serves := l.Latency(q, l.Start()); serves && l.IsOpen() {
			return l, true
		}
	}
	return first, false
}

// searchThreshold finds the threshold of drs by hill climbing, as DeepRecSys does. From half the
// largest batch size it moves in steps of a quarter of the largest as long as that raises the
// throughput, then in half those steps, down to 1 % of the largest. throughput returns the
// throughput at a threshold, in any unit; it is called once per threshold. The search ends at its
// first error.
func searchThreshold(largest int, throughput func(threshold int) (float64, error)) (threshold int,
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
