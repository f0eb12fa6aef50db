package sim

import (
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/placement"
)

// newPlanner returns what decides the placement of a run, nil if it does not change.
func newPlanner(r *simulation) (*placement.Planner, error) {
	if r.cfg.Placement == nil {
		return nil, nil
	}
	var variants []placement.Variant
	var families []placement.Family
	known := map[names.TableKey]match.Latencies{}
	for i := range r.variants {
		m := &r.cfg.Models[r.modelOf(i)]
		v := placement.Variant{
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
		families = append(families, placement.Family{
			Name: m.Name, QoSTarget: m.QoSTarget, Sizes: Distribution(m.BatchSizes),
		})
	}
	var lanes []placement.AgentLane
	for i, name := range r.fleet.AgentNames() {
		l := placement.AgentLane{Agent: name, Type: r.serves.Lanes[i].Type}
		for v := range r.variants {
			if r.lanes[i].holdsModel(r.variants[v].Name) {
				l.Holds = append(l.Holds, v)
			}
		}
		lanes = append(lanes, l)
	}
	p, err := placement.New(r.cfg.Placement, variants, families, lanes, known,
		placedFleet{r.fleet, r})
	if err == nil {
		r.fleet.Schedule(0, r.wakePlanner)
		r.warmUp = placement.WarmUp
	}
	return p, err
}

// wakePlanner lets the planner decide. It sleeps once nothing happens any more.
func (r *simulation) wakePlanner() {
	r.now = r.fleet.Now()
	r.countDay()
	next, err := r.placed.Wake(r.now)
	if err != nil {
		r.fail(fmt.Errorf("placement: %w", err))
	} else if r.now-r.fleet.MovedAt() < fleet.Patience {
		r.fleet.Schedule(next, r.wakePlanner)
	}
}

// notePlannerAction tells the planner of an action of the leader. The leader begins before there is
// a planner.
func (r *simulation) notePlannerAction(a *leader.Action) {
	if r.placed != nil {
		r.placed.Acts(r.fleet.Now(), a)
	}
}

// tellEnd tells the planner of a query's outcome.
func (r *simulation) tellEnd(q *query, o Outcome, by fleet.Answer) {
	variant := -1
	if o == Served {
		variant = by.Model
	}
	late := variant < 0 || r.now-q.arrival > r.models[q.model].QoSTarget
	if r.placed != nil {
		r.placed.Ended(int(q.model), variant, late, q.arrival)
	}
	if r.rental != nil {
		accuracy := 0.0
		if variant >= 0 {
			accuracy = r.variants[variant].Accuracy
		}
		r.rental.Ended(int(q.model), accuracy, late, q.arrival)
	}
}

// A placedFleet implements [placement.PlacementControl].
type placedFleet struct {
	*fleet.Fleet
	run *simulation
}

// Busy implements [placement.PlacementControl].
func (p placedFleet) Busy(lane int) bool { return p.Has(lane) > 0 }

// Forecast implements [placement.PlacementControl]: queries whose variants are drawn are drawn by
// it.
func (p placedFleet) Forecast(family int, byVariant []float64) {
	m := &p.run.models[family]
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
	if slices.Contains(without, c.Policy) {
		errs = append(errs,
			fmt.Errorf("placements are not decided by policies without a leader: %v",
				without))
	}
	return errs
}
