package fluid

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Kept is a model that long runs of others may not block. Runs are not preempted: a query that
// comes while every instance that could serve it in time has a run of more than its target before
// it is late. So whatever the policy, such runs fill all of these instances at once no longer than
// the model's queries may be late: their time beyond the target is at most that of all of the
// instances but one, and of Unserved of the one. Work without a deadline does not count: it may
// wait.
type Kept struct {
	Model  names.ModelKey
	Target time.Duration
	Types  []int // that serve any of its queries in time, as indices into Program.Types
}

// KeptFor returns the models of p that others may block, given the QoS targets: those with the
// shortest targets first, and none that is not blocked if those before it are not.
func (p *Program) KeptFor(targets map[names.ModelKey]time.Duration) (all []Kept) {
	var models []names.ModelKey
	for _, b := range p.Bins {
		if b.Share > 0 && targets[b.Model] > 0 && !slices.Contains(models, b.Model) {
			models = append(models, b.Model)
		}
	}
	slices.SortStableFunc(models, func(a, b names.ModelKey) int {
		return cmp.Compare(targets[a], targets[b])
	})
	for _, model := range models {
		k := Kept{Model: model, Target: targets[model], Types: p.servingTypes(model)}
		if len(k.Types) > 0 && p.mayBlock(&k) && !slices.ContainsFunc(all, func(o Kept) bool {
			return !slices.ContainsFunc(o.Types, func(t int) bool {
				return !slices.Contains(k.Types, t)
			})
		}) {
			all = append(all, k)
		}
	}
	return all
}

// servingTypes returns the types with instances that serve any of a model's queries in time: all
// the others may be blocked.
func (p *Program) servingTypes(model names.ModelKey) (types []int) {
	for t := range p.Types {
		if p.Types[t].Count > 0 && slices.ContainsFunc(p.Bins, func(b Bin) bool {
			return b.Model == model && b.Latency[t] > 0
		}) {
			types = append(types, t)
		}
	}
	return types
}

// mayBlock reports whether each of the types may run something that takes longer than the target.
func (p *Program) mayBlock(k *Kept) bool {
	for _, t := range k.Types {
		if !slices.ContainsFunc(p.Bins, func(b Bin) bool {
			return b.Model != k.Model && b.Share > 0 && b.Latency[t] > k.Target
		}) {
			return false
		}
	}
	return true
}

// setKept makes the rows of what is kept: by bin and type in the pool, for how long, in ms, a query
// blocks the model that is not to be blocked.
func (s *Solver) setKept(p *Program) {
	n := len(s.types)
	for k := range p.Kept {
		kept, row, count := &p.Kept[k], make([]float64, len(s.latency)), 0
		for i, t := range s.types {
			if !slices.Contains(kept.Types, t) {
				continue
			}
			count += p.Types[t].Count
			for b := range p.Bins {
				if s.late[b] {
					continue
				}
				if ms := s.latency[b*n+i] - toMs(kept.Target); ms > 0 &&
					!math.IsInf(ms, 1) && p.Bins[b].Model != kept.Model {
					row[b*n+i] = ms
				}
			}
		}
		s.kept = append(s.kept, row)
		s.value[n+len(s.models)+k] = max(0, float64(count)-1+p.Unserved)
	}
}
