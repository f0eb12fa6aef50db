package placements

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// INFaaS is INFaaS-Accuracy: the cost that INFaaS minimises is the accuracy that is lost. An agent
// is placed by the query that finds none, and once a period by a greedy rule for each family, which
// replicates, upgrades, downgrades or removes.
type INFaaS struct {
	// Slack is the part of an agent's rate that may be used; 0 means .95. DownSlack is the part of
	// that below which runs are made smaller; 0 means .4.
	Slack, DownSlack float64
	// AsArtifact repeats what the authors' simulator computes: how many agents an upgrade takes
	// follows from latencies as if they were rates, and an agent is downgraded to the least
	// accurate variant whenever it cannot be removed.
	AsArtifact bool
	// Order lists variants and sizes of a type in the order in which an upgrade looks at them; nil
	// means the fleet's.
	Order [][]VariantSize
}

// A VariantSize is a variant in runs of Sizes[Size] queries.
type VariantSize struct{ Variant, Size int }

func (n *INFaaS) slack() (slack, down float64) {
	slack, down = n.Slack, n.DownSlack
	if slack == 0 {
		slack = 0.95
	}
	if down == 0 {
		down = 0.4
	}
	return slack, down
}

// rate is queries/s of an agent in runs of a size.
func (s *State) rate(typ, variant, size int) float64 {
	if size < 0 || s.Latency[typ][variant][size] == 0 {
		return 0
	}
	return float64(s.Sizes[size]) / s.Latency[typ][variant][size].Seconds()
}

// free is the first agent of a type that holds nothing, -1 if there is none.
func (s *State) free(typ int) int {
	return slices.IndexFunc(s.Agents, func(a Agent) bool { return a.Type == typ && a.Variant < 0 })
}

// held are the agents of a family, in the order in which they were placed.
func (n *INFaaS) held(s *State, family int) (agents []int) {
	for i := range s.Agents {
		if v := s.Agents[i].Variant; v >= 0 && s.Variants[v].Family == family {
			agents = append(agents, i)
		}
	}
	slices.SortFunc(agents, func(a, b int) int { return s.Agents[a].Placed - s.Agents[b].Placed })
	return agents
}

// Place implements [Rival].
func (n *INFaaS) Place(s *State) error {
	for k := range s.Families {
		n.up(s, k)
	}
	for k := range s.Families {
		if n.AsArtifact {
			n.downAsArtifact(s, k)
		} else {
			n.down(s, k)
		}
	}
	return nil
}

// up adds agents to a family that has too few.
func (n *INFaaS) up(s *State, family int) {
	slack, _ := n.slack()
	load, total := s.Demand[family], 0.0
	agents := n.held(s, family)
	for _, i := range agents {
		a := &s.Agents[i]
		if a.Size >= 0 && s.Latency[a.Type][a.Variant][a.Size] > 0 {
			total += float64(s.Sizes[s.Largest(a.Type, a.Variant)]) /
				s.Latency[a.Type][a.Variant][a.Size].Seconds()
		}
	}
	if math.Floor(total*slack) >= load {
		return
	}
	best := s.best(family)
	for _, i := range agents {
		a := &s.Agents[i]
		was := a.Size
		a.Size = s.Largest(a.Type, a.Variant)
		drop := best - s.Variants[a.Variant].Accuracy
		replicas := math.Inf(1)
		peak := s.rate(a.Type, a.Variant, a.Size)
		if n.AsArtifact { // in the time of the former size
			if peak = 0; was >= 0 && s.Latency[a.Type][a.Variant][was] > 0 {
				peak = float64(s.Sizes[a.Size]) / s.Latency[a.Type][a.Variant][was].Seconds()
			}
		}
		if peak > 0 {
			replicas = math.Ceil(load / (peak * slack))
		}
		v, typ, needed := n.upgrade(s, family, a.Type, load)
		if v < 0 {
			continue
		}
		if cost := (best - s.Variants[v].Accuracy) * needed; !(cost <= drop*replicas) {
			// As the authors have it, a replica holds the family's least accurate variant.
			v, typ, needed = s.least(family), a.Type, replicas
			if !n.AsArtifact {
				v = a.Variant
			}
		}
		for ; needed > 0; needed-- {
			i := s.free(typ)
			if i < 0 {
				return
			}
			s.Put(i, v)
		}
		return
	}
}

// upgrade is the variant and type that lose the least accuracy, and how many agents of them carry
// the load.
func (n *INFaaS) upgrade(s *State, family, typ int, load float64) (variant, on int,
	needed float64) {
	slack, _ := n.slack()
	variant, on = -1, -1
	least, best := math.Inf(1), s.best(family)
	for _, o := range n.order(s, typ) {
		if s.Variants[o.Variant].Family != family {
			continue
		}
		fewest, where := math.Inf(1), 0
		for t := range s.Types {
			k := math.Inf(1)
			if s.free(t) >= 0 {
				k = math.Ceil(load / (n.worth(s, t, o) * slack))
			}
			if k < fewest {
				fewest, where = k, t
			}
		}
		if cost := (best - s.Variants[o.Variant].Accuracy) * fewest; cost < least {
			variant, on, needed, least = o.Variant, where, fewest, cost
		}
	}
	return variant, on, needed
}

// worth is what one agent adds, as the rule sees it.
func (n *INFaaS) worth(s *State, typ int, o VariantSize) float64 {
	if !n.AsArtifact {
		if o.Size > s.Largest(typ, o.Variant) {
			return 0
		}
		return s.rate(typ, o.Variant, o.Size)
	}
	l := s.Latency[typ][o.Variant][o.Size]
	if l == 0 {
		return math.Inf(1)
	}
	return float64(l) / float64(time.Millisecond)
}

func (n *INFaaS) order(s *State, typ int) []VariantSize {
	if n.Order != nil {
		return n.Order[typ]
	}
	var order []VariantSize
	for v := range s.Variants {
		for k := range s.Sizes {
			order = append(order, VariantSize{v, k})
		}
	}
	return order
}

// best is the accuracy of a family's most accurate variant.
func (s *State) best(family int) (best float64) {
	for _, v := range s.Variants {
		if v.Family == family {
			best = max(best, v.Accuracy)
		}
	}
	return best
}

// least is a family's least accurate variant.
func (s *State) least(family int) int {
	least := -1
	for v, x := range s.Variants {
		if x.Family == family && (least < 0 || x.Accuracy < s.Variants[least].Accuracy) {
			least = v
		}
	}
	return least
}

// down removes agents that the load does not need, and downgrades others where it exceeds what the
// family's agents can do.
func (n *INFaaS) down(s *State, family int) {
	slack, _ := n.slack()
	load, total := s.Demand[family], 0.0
	agents := n.held(s, family)
	for _, i := range agents {
		a := &s.Agents[i]
		total += s.rate(a.Type, a.Variant, a.Size)
	}
	for _, i := range agents {
		a := &s.Agents[i]
		own := s.rate(a.Type, a.Variant, a.Size)
		if (total-own)*slack > load {
			total -= own
			s.Put(i, -1)
			continue
		}
		if total*slack >= load {
			continue
		}
		faster := a.Variant // the most accurate one that is faster
		for v, x := range s.Variants {
			if x.Family == family && s.Rate(a.Type, v) > own &&
				(faster == a.Variant || x.Accuracy > s.Variants[faster].Accuracy) {
				faster = v
			}
		}
		if faster != a.Variant {
			total += s.Rate(a.Type, faster) - own
			s.Put(i, faster)
		}
	}
}

// downAsArtifact is down as the authors' simulator has it: an agent that cannot be removed gets the
// least accurate variant; sizes of one agent are used for the next one; and what an agent of the
// first type could take over is compared with a latency.
func (n *INFaaS) downAsArtifact(s *State, family int) {
	slack, downSlack := n.slack()
	load := s.Demand[family]
	total, waiting, size := 0.0, 0.0, -1
	agents := n.held(s, family)
	for _, i := range agents {
		a := &s.Agents[i]
		total += s.rate(a.Type, a.Variant, a.Size)
		waiting += float64(a.Holds)
		size = a.Size
	}
	// at is queries/s of an agent in runs of Sizes[size] that take as long as one of Sizes[as].
	at := func(a *Agent, size, as int) float64 {
		if size < 0 || as < 0 || s.Latency[a.Type][a.Variant][as] == 0 {
			return 0
		}
		return float64(s.Sizes[size]) / s.Latency[a.Type][a.Variant][as].Seconds()
	}
	type change struct{ agent, typ, variant int }
	var changes []change
decide:
	for _, i := range agents {
		a := &s.Agents[i]
		runs := size
		own := at(a, a.Size, runs)
		if (total-own)*slack > waiting {
			changes = append(changes, change{i, -1, -1})
			total -= own
			continue
		}
		for v, x := range s.Variants {
			if x.Family == family {
				size = s.Largest(a.Type, v)
			}
		}
		least := s.least(family)
		if least != a.Variant {
			changes = append(changes, change{i, a.Type, least})
			total += s.Rate(a.Type, least) - own
			continue
		}
		if total*slack*downSlack <= load {
			break decide
		}
		smaller := false
		for size = 0; size < len(s.Sizes) && size <= s.Largest(a.Type, a.Variant); size++ {
			if sum := total - own + at(a, size, runs); sum*slack > waiting {
				a.Size, total, smaller = size, sum, true
				break
			}
		}
		size = min(size, len(s.Sizes)-1)
		if smaller || s.Largest(0, a.Variant) < 0 {
			continue
		}
		for _, typ := range []int{0, 2} {
			if s.free(typ) < 0 || typ >= len(s.Types) {
				continue
			}
			gain := 0.0
			if a.Size >= 0 {
				gain = float64(s.Latency[0][a.Variant][a.Size]) / float64(time.Millisecond)
			}
			if sum := total - own + gain; sum*slack > waiting {
				total = sum
				changes = append(changes, change{i, typ, a.Variant})
			}
			break
		}
	}
	for _, c := range changes {
		s.Put(c.agent, -1)
	}
	for _, c := range changes {
		if c.variant >= 0 {
			if i := s.free(c.typ); i >= 0 {
				s.Put(i, c.variant)
			}
		}
	}
}

// Route implements [Rival]. A query wants the most accurate variant.
func (n *INFaaS) Route(s *State, family int, rng *rand.Rand) int {
	agents := n.held(s, family)
	spare := func(i int) (load float64, ok bool) {
		a := &s.Agents[i]
		peak := math.Floor(s.rate(a.Type, a.Variant, a.Size))
		return float64(a.Holds) / peak, peak > float64(a.Holds)
	}
	best, found, least := s.best(family), -1, math.Inf(1)
	for _, i := range agents {
		if s.Variants[s.Agents[i].Variant].Accuracy < 100 && n.AsArtifact ||
			s.Variants[s.Agents[i].Variant].Accuracy < best {
			continue
		}
		if load, ok := spare(i); ok && load < least {
			found, least = i, load
		}
	}
	if found >= 0 {
		return found
	}
	if i := n.activate(s, family, agents); i >= 0 {
		return i
	}
	slices.SortStableFunc(agents, func(a, b int) int {
		x, y := s.Variants[s.Agents[a].Variant].Accuracy, s.Variants[s.Agents[b].Variant].Accuracy
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for _, i := range agents {
		a := &s.Agents[i]
		l := s.Latency[a.Type][a.Variant][max(a.Size, 0)]
		// The authors' simulator sends queries to agents that can answer none in half the target.
		_, ok := spare(i)
		ok = ok || n.AsArtifact && math.Floor(s.rate(a.Type, a.Variant, max(a.Size, 0))) >
			float64(a.Holds)
		if ok && l > 0 && l <= s.Families[family].Target {
			return i
		}
	}
	if len(agents) == 0 {
		return -1
	}
	return agents[rng.IntN(len(agents))]
}

// activate places a variant that no agent holds on an agent that holds nothing.
func (n *INFaaS) activate(s *State, family int, agents []int) int {
	for v, x := range s.Variants {
		if x.Family != family ||
			slices.ContainsFunc(agents, func(i int) bool { return s.Agents[i].Variant == v }) {
			continue
		}
		for t := range s.Types {
			l := s.Latency[t][v][max(s.Largest(t, v), 0)]
			if l == 0 || l >= s.Families[family].Target {
				continue
			}
			if i := s.free(t); i >= 0 {
				s.Put(i, v)
				return i
			}
		}
	}
	return -1
}
