package place

import (
	"cmp"
	"math"
	"slices"
)

// A scaledProgram is a Program in the units of the search. Flow is in parts of its class's demand,
// so that a class has 1 to be served, and value is normalised: accuracy is between 0 and 1.
type scaledProgram struct {
	types   []int     // agents
	rate    []float64 // by class, queries/s: what is asked, or all that agents could serve if less
	weight  []float64 // by class: rate's part of demand
	choices []choice
	groups  []group
	demand  float64 // queries/s that all classes ask
	point   float64 // value of a point of accuracy at all of the demand
}

// A choice is a Choice, or the part of one that is as agents are now or is not.
type choice struct {
	typ    int
	most   int
	cost   float64 // of one agent
	parts  []part
	source int // in the Program
}

// isSimple says that an agent serves one class with one variant.
func (c *choice) isSimple() bool { return len(c.parts) == 1 && len(c.parts[0].offers) == 1 }

// A part is a Partition. Its offers share its time.
type part struct {
	group  int
	offers []offer
}

// An offer is a Service.
type offer struct {
	class     int
	level     int     // of its gain among the group's, 0 the highest; if the group is greedy
	gain      float64 // of serving all of the class
	rate      float64 // part of the class that one agent serves
	partition int     // in the Program's choice
	service   int
	variant   int
}

// A group is classes that share the time of partitions; most often one class. Given counts, each
// group's flow is a matter of its own.
type group struct {
	classes []int
	// greedy says that it has one class, and no partition shares its time: the most accurate
	// offers are used first.
	greedy bool
	// mixed says that it is greedy, and a choice serves it and something else.
	mixed   bool
	levels  []float64 // gains, the highest first
	choices []int     // that serve it
}

// served is the value of serving all of the demand, beside which accuracy and price are at most 1.
const served = 1e6

// negligible is the part of a class's demand of which a whole type's agents may be too few to
// matter.
const negligible = 1e-7

// newScaledProgram translates p, which must be valid.
func newScaledProgram(p *Program) *scaledProgram {
	m := &scaledProgram{}
	for _, t := range p.Types {
		m.types = append(m.types, t.Count)
	}
	class := make([]int, len(p.Classes)) // in the model; -1: nothing to serve
	most := maxServed(p)
	largest := 0.0
	for _, c := range p.Classes {
		largest = max(largest, c.Rate)
	}
	for k, c := range p.Classes {
		if largest > 0 {
			m.demand += c.Rate / largest
		}
		class[k] = -1
		if rate := min(c.Rate, most[k]); rate > 0 {
			class[k] = len(m.rate)
			m.rate, m.weight = append(m.rate, rate), append(m.weight, rate/largest)
		}
	}
	for k := range m.weight {
		m.weight[k] /= m.demand
	}
	m.translateChoices(p, class)
	m.groupClasses()
	m.computeGains(p)
	m.removeDominated()
	for g := range m.groups {
		m.groups[g].choices = nil
	}
	for i := range m.choices {
		for _, g := range m.choices[i].appendGroups(nil) {
			m.groups[g].choices = append(m.groups[g].choices, i)
			if len(m.choices[i].parts) > 1 && m.groups[g].greedy {
				m.groups[g].mixed = true
			}
		}
	}
	return m
}

// maxServed is, by class, what the agents could serve if they all served nothing else.
func maxServed(p *Program) []float64 {
	by := make([][]float64, len(p.Types)) // by type and class: the most of one agent
	for t := range by {
		by[t] = make([]float64, len(p.Classes))
	}
	rates := make([]float64, len(p.Classes))
	for _, c := range p.Choices {
		for _, partition := range c.Partitions {
			for _, s := range partition {
				rates[s.Class] += s.Rate
			}
		}
		for _, partition := range c.Partitions {
			for _, s := range partition {
				by[c.Type][s.Class] = max(by[c.Type][s.Class], rates[s.Class])
			}
		}
		for _, partition := range c.Partitions {
			for _, s := range partition {
				rates[s.Class] = 0
			}
		}
	}
	all := make([]float64, len(p.Classes))
	for t, rates := range by {
		for k, rate := range rates {
			all[k] += rate * float64(p.Types[t].Count)
		}
	}
	return all
}

// appendGroups appends the groups that c serves, each once.
func (c *choice) appendGroups(to []int) []int {
	for _, part := range c.parts {
		if !slices.Contains(to, part.group) {
			to = append(to, part.group)
		}
	}
	return to
}

func (m *scaledProgram) translateChoices(p *Program, class []int) {
	for i, from := range p.Choices {
		c := choice{typ: from.Type, most: m.types[from.Type], source: i}
		for j, partition := range from.Partitions {
			var offers []offer
			for k, s := range partition {
				to := class[s.Class]
				if to < 0 {
					continue
				}
				rate := s.Rate / m.rate[to]
				if rate*float64(c.most) < negligible {
					continue
				}
				offers = append(offers, offer{
					class: to, rate: min(rate, 1e12), partition: j, service: k, variant: s.Variant,
				})
			}
			if len(offers) == 1 {
				offers[0].rate = min(1, offers[0].rate)
			}
			if len(offers) > 0 {
				c.parts = append(c.parts, part{offers: offers})
			}
		}
		if len(c.parts) == 0 {
			continue
		}
		if p.Current != nil && p.Current[i] > 0 {
			kept := c
			kept.most = min(c.most, p.Current[i])
			kept.cost = -1 // for value to tell them apart
			m.choices = append(m.choices, kept)
		}
		m.choices = append(m.choices, c)
	}
}

// groupClasses joins the classes that share the time of a partition.
func (m *scaledProgram) groupClasses() {
	of := make([]int, len(m.weight))
	for k := range of {
		of[k] = k
	}
	root := func(k int) int {
		for of[k] != k {
			of[k] = of[of[k]]
			k = of[k]
		}
		return k
	}
	shares := make([]bool, len(m.weight))
	for i := range m.choices {
		for _, part := range m.choices[i].parts {
			for _, o := range part.offers[1:] {
				of[root(o.class)] = root(part.offers[0].class)
				shares[o.class] = true
			}
			shares[part.offers[0].class] = shares[part.offers[0].class] || len(part.offers) > 1
		}
	}
	index := make([]int, len(m.weight))
	for k := range of {
		if root(k) == k {
			index[k] = len(m.groups)
			m.groups = append(m.groups, group{greedy: true})
		}
	}
	for k := range of {
		g := &m.groups[index[root(k)]]
		g.classes = append(g.classes, k)
		g.greedy = g.greedy && !shares[k] && len(g.classes) == 1
	}
	for i := range m.choices {
		c := &m.choices[i]
		c.parts = slices.Clone(c.parts) // those of a choice and its twin are not one
		for j := range c.parts {
			c.parts[j].group = index[root(c.parts[j].offers[0].class)]
			c.parts[j].offers = slices.Clone(c.parts[j].offers)
		}
	}
}

// computeGains sets the gains of offers and the costs of agents.
func (m *scaledProgram) computeGains(p *Program) {
	best := 0.0
	for _, v := range p.Variants {
		best = max(best, v.Accuracy)
	}
	if best == 0 {
		best = 1
	}
	price, change := make([]float64, len(p.Types)), 0.0
	if p.Objective == FewestAgents {
		agent := 1 / m.estimateAgents()
		for t := range price {
			price[t] = agent
		}
		m.point, change = agent/2/best, 0
	} else {
		m.point = 1 / best
		all, agents := 0.0, 0.0
		for _, t := range p.Types {
			all += t.Price * float64(t.Count)
			agents += float64(t.Count)
		}
		if all > 0 {
			for t := range price {
				price[t] = cmp.Or(p.Price, 1e-3) * m.point * p.Types[t].Price / all
			}
		}
		if agents > 0 {
			change = cmp.Or(p.Change, 1e-4) * m.point / agents
		}
	}
	if p.Current == nil {
		change = 0
	}
	for i := range m.choices {
		c := &m.choices[i]
		kept := c.cost < 0
		if c.cost = price[c.typ]; !kept {
			c.cost += change
		}
		for _, part := range c.parts {
			for k := range part.offers {
				o := &part.offers[k]
				o.gain = m.weight[o.class] * (served + m.point*p.Variants[o.variant].Accuracy)
				g := &m.groups[part.group]
				g.levels = append(g.levels, o.gain)
			}
		}
	}
	for g := range m.groups {
		levels := &m.groups[g].levels
		slices.Sort(*levels)
		slices.Reverse(*levels)
		*levels = slices.Compact(*levels)
	}
	for i := range m.choices {
		for _, part := range m.choices[i].parts {
			for k := range part.offers {
				o := &part.offers[k]
				o.level = slices.Index(m.groups[part.group].levels, o.gain)
			}
		}
	}
}

// estimateAgents estimates the agents that serve all of the demand if each serves one class.
func (m *scaledProgram) estimateAgents() float64 {
	best := make([]float64, len(m.weight))
	for i := range m.choices {
		for _, part := range m.choices[i].parts {
			for _, o := range part.offers {
				best[o.class] = max(best[o.class], o.rate)
			}
		}
	}
	sum, all := 0.0, 0
	for _, r := range best {
		if r > 0 {
			sum += math.Ceil(1 / r)
		}
	}
	for _, n := range m.types {
		all += n
	}
	return max(1, min(sum, float64(all)))
}

// removeDominated removes choices than which another of the type is as cheap and at least as good.
func (m *scaledProgram) removeDominated() {
	type key struct{ typ, class int }
	byKey := map[key][]int{}
	for i := range m.choices {
		if c := &m.choices[i]; c.isSimple() {
			k := key{c.typ, c.parts[0].offers[0].class}
			byKey[k] = append(byKey[k], i)
		}
	}
	gone := make([]bool, len(m.choices))
	for _, is := range byKey {
		slices.SortStableFunc(is, func(a, b int) int {
			x, y := &m.choices[a], &m.choices[b]
			return cmp.Or(cmp.Compare(y.parts[0].offers[0].gain, x.parts[0].offers[0].gain),
				cmp.Compare(y.parts[0].offers[0].rate, x.parts[0].offers[0].rate),
				cmp.Compare(x.cost, y.cost), cmp.Compare(x.source, y.source))
		})
		var kept []int
		for _, i := range is {
			c := &m.choices[i]
			for _, j := range kept {
				d := &m.choices[j]
				if d.most >= m.types[c.typ] && d.cost <= c.cost &&
					d.parts[0].offers[0].rate >= c.parts[0].offers[0].rate {
					gone[i] = true
					break
				}
			}
			if !gone[i] {
				kept = append(kept, i)
			}
		}
	}
	to := m.choices[:0]
	for i, c := range m.choices {
		if !gone[i] && c.most > 0 {
			to = append(to, c)
		}
	}
	m.choices = to
}
