package place

import "github.com/muster-serve/muster/leader/internal/simplex"

// search is the state of a search: counts of the model's choices, and what they are worth.
type search struct {
	m    *scaledProgram
	n    []int // by choice
	used []int // by type
	// caps is, by greedy group and level, what the counts offer.
	caps [][]float64
	val  []float64 // by group: the value of its flow
	cost float64   // of all agents
	lp   simplex.Program
	work int // operations so far
}

func newSearch(m *scaledProgram) *search {
	s := &search{
		m: m, n: make([]int, len(m.choices)), used: make([]int, len(m.types)),
		caps: make([][]float64, len(m.groups)), val: make([]float64, len(m.groups)),
	}
	for g := range m.groups {
		s.caps[g] = make([]float64, len(m.groups[g].levels))
	}
	return s
}

// netValue is that of all flow, less what the agents cost.
func (s *search) netValue() float64 {
	v := -s.cost
	for _, x := range s.val {
		v += x
	}
	return v
}

// set sets all counts.
func (s *search) set(n []int) {
	copy(s.n, n)
	clear(s.used)
	for i, n := range s.n {
		s.used[s.m.choices[i].typ] += n
	}
	for g := range s.m.groups {
		s.refreshGroup(g)
	}
	s.computeCost()
}

func (s *search) computeCost() {
	s.cost = 0
	for i, n := range s.n {
		s.cost += float64(n) * s.m.choices[i].cost
	}
}

// refreshGroup computes a group's offers and value from the counts.
func (s *search) refreshGroup(g int) {
	group := &s.m.groups[g]
	s.work += len(group.choices)
	if !group.greedy {
		s.val[g] = s.sharedValue(g, nil)
		return
	}
	clear(s.caps[g])
	for _, i := range group.choices {
		if s.n[i] > 0 {
			s.addOffer(i, g, float64(s.n[i]))
		}
	}
	s.val[g] = s.greedyValue(g)
}

// addOffer adds what n agents of choice i offer to the greedy group g.
func (s *search) addOffer(i, g int, n float64) {
	parts := s.m.choices[i].parts
	for p := range parts {
		if parts[p].group == g {
			o := &parts[p].offers[0]
			s.caps[g][o.level] = max(0, s.caps[g][o.level]+n*o.rate)
		}
	}
}

// greedyValue is the value of a greedy group's flow: the most accurate offers are used first.
func (s *search) greedyValue(g int) float64 {
	levels := s.m.groups[g].levels
	left, value := 1.0, 0.0
	s.work += 4
	for level, rate := range s.caps[g] {
		if rate == 0 {
			continue
		}
		s.work++
		if rate >= left {
			return value + left*levels[level]
		}
		value += rate * levels[level]
		left -= rate
	}
	return value
}

// sharedValue is the value of the flow of a group whose classes share the time of partitions. It
// hands the flow of each offer to tell, if that is not nil.
func (s *search) sharedValue(g int,
	tell func(choice int, p *part, offer int, flow float64)) float64 {
	group := &s.m.groups[g]
	l := &s.lp
	l.Reset()
	row := make(map[int]int, len(group.classes))
	for _, k := range group.classes {
		row[k] = l.AddRow(1)
	}
	type flow struct{ choice, part, offer int }
	var flows []flow
	for _, i := range group.choices {
		if s.n[i] == 0 {
			continue
		}
		for p := range s.m.choices[i].parts {
			part := &s.m.choices[i].parts[p]
			if part.group != g {
				continue
			}
			time := l.AddRow(float64(s.n[i]))
			for k := range part.offers {
				o := &part.offers[k]
				l.AddCoefficient(time, 1/o.rate)
				l.AddCoefficient(row[o.class], 1)
				l.AddColumn(o.gain, 1)
				flows = append(flows, flow{i, p, k})
			}
		}
	}
	l.Solve()
	s.work += l.Work
	l.Work = 0
	value := 0.0
	for j, x := range l.Solution(nil) {
		value += x * l.Cost[j]
		if tell != nil {
			f := flows[j]
			tell(f.choice, &s.m.choices[f.choice].parts[f.part], f.offer, x)
		}
	}
	return value
}

// changeCount adds d agents to choice i.
func (s *search) changeCount(i, d int) {
	c := &s.m.choices[i]
	s.n[i] += d
	s.used[c.typ] += d
	s.cost += float64(d) * c.cost
}

// gainOf is what a change of the counts adds to the value: an agent less of choice from and one
// more of choice to; -1 is no choice. Both serve greedy groups only.
func (s *search) gainOf(from, to int) (gain float64) {
	var array [8]int
	groups := array[:0]
	if from >= 0 {
		gain += s.m.choices[from].cost
		groups = s.m.choices[from].appendGroups(groups)
	}
	if to >= 0 {
		gain -= s.m.choices[to].cost
		groups = s.m.choices[to].appendGroups(groups)
	}
	for _, g := range groups {
		gain += s.groupGain(g, from, to)
	}
	return gain
}

// groupGain is what the change of gain adds to the value of greedy group g.
func (s *search) groupGain(g, from, to int) float64 {
	var was [8]struct {
		level int
		rate  float64
	}
	changed := 0
	apply := func(i int, n float64) {
		if i < 0 {
			return
		}
		parts := s.m.choices[i].parts
		for p := range parts {
			if parts[p].group != g || changed == len(was) {
				continue
			}
			o := &parts[p].offers[0]
			cap := &s.caps[g][o.level]
			was[changed].level, was[changed].rate = o.level, *cap
			changed++
			if *cap += n * o.rate; *cap < 1e-13 {
				*cap = 0
			}
		}
	}
	apply(from, -1)
	apply(to, 1)
	gain := s.greedyValue(g) - s.val[g]
	for k := changed - 1; k >= 0; k-- {
		s.caps[g][was[k].level] = was[k].rate
	}
	return gain
}
