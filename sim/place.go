package sim

import (
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/placing"
)

// newPlanner returns what decides the placement of a run, nil if it does not change.
func newPlanner(r *run) (*placing.Planner, error) {
	if r.cfg.Placement == nil {
		return nil, nil
	}
	var variants []placing.Variant
	var families []placing.Family
	known := map[names.TableKey]match.Latencies{}
	for i := range r.variants {
		m := &r.cfg.Models[r.modelOf(i)]
		v := placing.Variant{
			Name: r.variants[i].Name, Family: r.modelOf(i), Accuracy: r.variants[i].Accuracy,
			Merges: r.cfg.Merge.Merges(), Largest: r.cfg.largestRun(m),
		}
		variants = append(variants, v)
		for t, l := range r.known {
			if l.known[i] != nil {
				known[names.TableKey{Model: v.Key(), Type: names.LaneType(r.types[t])}] = l.known[i]
			}
		}
	}
	for i := range r.cfg.Models {
		m := &r.cfg.Models[i]
		families = append(families, placing.Family{
			Name: m.Name, QoSTarget: m.QoSTarget, Sizes: Distribution(m.BatchSizes),
		})
	}
	var lanes []placing.Lane
	for i, m := range r.term.members {
		l := placing.Lane{Agent: m.Name, Type: m.Type}
		for v := range r.variants {
			if r.lanes[i].holds(r.variants[v].Name) {
				l.Holds = append(l.Holds, v)
			}
		}
		lanes = append(lanes, l)
	}
	p, err := placing.New(r.cfg.Placement, variants, families, lanes, known, r.term)
	if err == nil {
		r.heap.push(event{kind: planWakes})
		r.warmUp = placing.WarmUp
	}
	return p, err
}

// wakePlanner lets the planner decide. It sleeps once nothing happens any more.
func (r *run) wakePlanner() {
	next, err := r.placed.Wake(r.now)
	if err != nil {
		r.fail(fmt.Errorf("placement: %w", err))
	} else if r.now-r.movedAt < patience {
		r.heap.push(event{at: next, kind: planWakes})
	}
}

// tellEnd tells the planner of a query's outcome.
func (r *run) tellEnd(q *query, o Outcome, by *attempt) {
	variant := -1
	if o == Served {
		if variant = int(q.variant); by != nil {
			variant = int(by.variant)
		}
	}
	late := variant < 0 || r.now-q.arrival > r.models[q.model].QoSTarget
	r.placed.Ended(int(q.model), variant, late, q.arrival)
}

// holding describes a variant that a member holds.
func (t *term) holding(m *leader.Member, variant int) leader.Model {
	held := t.described[variant]
	if t.cfg.Placement != nil {
		v := placing.Variant{Name: t.variants[variant].Name}
		held.Profile = v.Profile(m.Type)
	}
	return held
}

// Hold implements [placing.Fleet].
func (t *term) Hold(lane int, variants []int) {
	m := *t.members[lane]
	m.Models = nil
	for _, v := range variants {
		m.Models = append(m.Models, t.holding(&m, v))
	}
	m.Revision++
	t.members[lane] = &m
	t.step(&leader.Event{Kind: leader.Described, Member: &m})
}

// Busy implements [placing.Fleet].
func (t *term) Busy(lane int) bool { return t.lanes[lane].has() > 0 }

// WaitingLate implements [placing.Fleet].
func (t *term) WaitingLate() int {
	t.state.Glance(&t.glance)
	return t.glance.WaitingLate
}

// Advise implements [placing.Fleet].
func (t *term) Advise(a *leader.Advice) { t.step(&leader.Event{Kind: leader.Learned, Advice: a}) }

// Forecast implements [placing.Fleet]: queries whose variants are drawn are drawn by it.
func (t *term) Forecast(family int, byVariant []float64) {
	m := &t.run.models[family]
	shares := byVariant[m.first:][:max(1, len(m.Variants))]
	if m.shares != nil && slices.Max(shares) > 0 {
		m.shares = slices.Clone(shares)
	}
}

// validatePlacement reports what is wrong with how the placement is decided.
func (c *Config) validatePlacement() (errs []error) {
	if c.Placement == nil {
		return nil
	}
	if err := c.Placement.Validate(); err != nil {
		errs = append(errs, err)
	}
	without := []string{Priced, Prequal, ORCA, Oracle}
	if slices.Contains(without, c.Policy) || len(c.Faults) > 0 {
		errs = append(errs, fmt.Errorf("placements are not decided with faults, nor by policies "+
			"without a leader: %v", without))
	}
	return errs
}
