package placements

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/muster-serve/muster/leader/place"
)

// Proteus places variants by the same program as package place, for a multiple of the forecast, and
// divides queries by drawing. Its options take parts of it away.
type Proteus struct {
	// Headroom is the multiple of the forecast that a placement is for; 0 means 1.05. If not all of
	// it can be served, less is planned for.
	Headroom float64
	// KeepFamilies: agents change their variant and never their family (no model placement). This
	// is how Proteus's authors adapt Sommelier. Start then says what agents hold first, by type and
	// variant; nil means what serves the expected load.
	KeepFamilies bool
	Start        [][]int
	// MostAccurateOnly: no other variants are placed (no model selection).
	MostAccurateOnly bool
	// ByFlow divides queries as the program does; otherwise agents of a family are alike, as in the
	// authors' simulator.
	ByFlow bool
	// Upgrade has agents that the program leaves over hold the most accurate variant of their
	// family.
	Upgrade bool
	// ByOne weighs all agents of one type and variant as the last one of them, as the authors'
	// simulator does.
	ByOne bool
	// Steps of each search; 0 means 20,000.
	Steps int

	weights Weights
	started bool
}

// Place implements [Rival].
func (p *Proteus) Place(s *State) error {
	if !p.started && p.KeepFamilies {
		p.started = true
		counts, flow := p.Start, Weights(nil)
		if counts == nil {
			var err error
			if counts, flow, err = provision(s.Fleet, nil); err != nil {
				return err
			}
		}
		for _, i := range s.Hold(counts) {
			if v := p.worth(s, s.Agents[i].Type); v >= 0 {
				s.Put(i, v)
			}
		}
		p.weights = flow
		if flow == nil {
			p.weights = asHeld(s)
		}
		return nil
	}
	demand := append([]float64(nil), s.Forecast...)
	if !p.started { // nothing has come yet
		for k := range demand {
			demand[k] = s.Families[k].Expected
		}
		p.started = true
	}
	if !slices.ContainsFunc(demand, func(x float64) bool { return x > 0 }) {
		return nil
	}
	times := p.Headroom
	if times == 0 {
		times = 1.05
	}
	for {
		planned := make([]float64, len(demand))
		for k := range planned {
			planned[k] = times * demand[k]
		}
		counts, flow, served, err := p.solve(s, planned)
		if err != nil {
			return err
		}
		if served > 1-1e-9 || times < 0.3 {
			p.hold(s, counts)
			p.weights = flow
			if p.ByOne {
				byOne(s.Fleet, counts, flow)
			}
			return nil
		}
		if times > 1.5 {
			times -= 0.1
		} else {
			times -= 0.05
		}
	}
}

// byOne leaves of the flow of each type and variant that of the last agent, where the others are
// full.
func byOne(f *Fleet, counts [][]int, flow [][]float64) {
	for t := range flow {
		for v := range flow[t] {
			if n := counts[t][v]; n > 1 {
				flow[t][v] = max(0, flow[t][v]-float64(n-1)*f.Rate(t, v))
			}
		}
	}
}

// worth is the variant that an agent left over holds: the most accurate one of the family that is
// expected most and that its type can serve.
func (p *Proteus) worth(s *State, typ int) int {
	best, most := -1, -1.0
	for k := range s.Families {
		if v := s.Best(k, typ); v >= 0 && s.Families[k].Expected > most {
			best, most = v, s.Families[k].Expected
		}
	}
	return best
}

// asHeld weighs what agents hold by what they can do.
func asHeld(s *State) Weights {
	w := make(Weights, len(s.Types))
	for t := range w {
		w[t] = make([]float64, len(s.Variants))
	}
	for i := range s.Agents {
		if a := &s.Agents[i]; a.Variant >= 0 {
			w[a.Type][a.Variant] += s.Rate(a.Type, a.Variant)
		}
	}
	return w
}

// solve returns counts and flow for a demand.
func (p *Proteus) solve(s *State, demand []float64) (counts [][]int, flow [][]float64,
	served float64, err error) {
	steps := cmp.Or(p.Steps, steps)
	if p.KeepFamilies {
		return p.keeping(s, demand, steps)
	}
	return solve(s.Fleet, demand, func(_, variant int) bool {
		return !p.MostAccurateOnly || variant == s.Best(s.Variants[variant].Family, -1)
	}, steps)
}

// hold makes agents hold counts.
func (p *Proteus) hold(s *State, counts [][]int) {
	may := func(int, int) bool { return true }
	if p.KeepFamilies {
		may = func(agent, variant int) bool {
			has := s.Agents[agent].Variant
			return has >= 0 && s.Variants[has].Family == s.Variants[variant].Family
		}
	}
	for _, i := range s.hold(counts, may) {
		a := &s.Agents[i]
		v := a.Variant
		switch {
		case v < 0:
			v = p.worth(s, a.Type)
		case p.Upgrade:
			v = s.Best(s.Variants[v].Family, a.Type)
		}
		if v >= 0 && v != a.Variant {
			s.Put(i, v)
		}
	}
}

// keeping solves with as many agents of each type and family as there are: each such pair is a type
// of its own.
func (p *Proteus) keeping(s *State, demand []float64, steps int) (counts [][]int, flow [][]float64,
	served float64, err error) {
	families := len(s.Families)
	program, variants := s.Program(demand, nil)
	program.Types = make([]place.Type, len(s.Types)*families)
	for t := range s.Types {
		for k := range families {
			program.Types[t*families+k].Name = s.Types[t].Name + " " + s.Families[k].Name
		}
	}
	for i := range s.Agents {
		if a := &s.Agents[i]; a.Variant >= 0 {
			program.Types[a.Type*families+s.Variants[a.Variant].Family].Count++
		}
	}
	for i := range program.Choices {
		c := &program.Choices[i]
		c.Type = c.Type*families + s.Variants[variants[i]].Family
	}
	sol, err := place.Solve(program, steps)
	if err != nil {
		return nil, nil, 0, err
	}
	counts, flow = make([][]int, len(s.Types)), make([][]float64, len(s.Types))
	for t := range counts {
		counts[t], flow[t] = make([]int, len(s.Variants)), make([]float64, len(s.Variants))
	}
	for i, c := range program.Choices {
		counts[c.Type/families][variants[i]] += sol.Counts[i]
		flow[c.Type/families][variants[i]] += sol.Flow[i][0][0]
	}
	return counts, flow, sol.Served, nil
}

// Route implements [Rival].
func (p *Proteus) Route(s *State, family int, rng *rand.Rand) int {
	if p.ByFlow || p.KeepFamilies {
		if i := p.weights.route(s, family, rng); i >= 0 {
			return i
		}
	}
	return s.any(rng, func(a *Agent) bool {
		return a.Variant >= 0 && s.Variants[a.Variant].Family == family
	})
}
