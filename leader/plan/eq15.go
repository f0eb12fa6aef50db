package plan

import "math"

// eq15 is KAIROS's bound on the throughput of a configuration (section 5.2, Eq. 9-15), prepared for
// many configurations. It is as the paper prints it. It is not quite an upper bound, because it
// assumes that the base type's spare time serves queries of average size.
type eq15 struct {
	base int
	all  float64 // Q_b: throughput of a base instance that serves all queries, queries/s
	// The fields are by auxiliary type, for configurations in which that type serves the largest
	// batch size s of all in time: s itself, the fraction f of the queries up to s, the throughput
	// Q_b^{s+} of a base instance on the larger queries, and the throughput Q_a of an instance of
	// each type on those up to s. s is 0 for the base type and for types that serve no query in
	// time.
	s        []int
	fraction []float64
	larger   []float64
	smaller  [][]float64
}

func newEq15(p *Problem, base int) *eq15 {
	m := &p.Models[0]
	// rate is the throughput of one instance on the queries from lo to hi only.
	rate := func(i, lo, hi int) float64 {
		var share, busy float64
		for _, s := range m.BatchSizes {
			if s.BatchSize >= lo && s.BatchSize <= hi {
				share += s.Share
				busy += s.Share * m.Latencies[i].Mean(s.BatchSize).Seconds()
			}
		}
		if busy == 0 {
			return math.Inf(1)
		}
		return share / busy
	}
	n := len(p.Types)
	e := &eq15{
		base: base, all: rate(base, 1, math.MaxInt), s: make([]int, n),
		fraction: make([]float64, n), larger: make([]float64, n), smaller: make([][]float64, n),
	}
	for i := range p.Types {
		if i == base {
			continue
		}
		for _, s := range m.BatchSizes {
			if m.meetsTarget(i, s.BatchSize) {
				e.s[i] = s.BatchSize
			}
		}
		for _, s := range m.BatchSizes {
			if s.BatchSize <= e.s[i] {
				e.fraction[i] += s.Share
			}
		}
		e.larger[i] = rate(base, e.s[i]+1, math.MaxInt)
		e.smaller[i] = make([]float64, n)
		for j := range p.Types {
			e.smaller[i][j] = rate(j, 1, e.s[i])
		}
	}
	return e
}

// boundOf returns the bound on c.
func (e *eq15) boundOf(c Configuration) float64 {
	widest := -1 // the auxiliary type of the largest f, the paper's f'
	for i, n := range c {
		if n > 0 && e.s[i] > 0 && (widest < 0 || e.s[i] > e.s[widest]) {
			widest = i
		}
	}
	u := float64(c[e.base])
	if widest < 0 {
		return u * e.all
	}
	var auxiliary float64
	for i, n := range c {
		if n > 0 && i != e.base {
			auxiliary += float64(n) * e.smaller[widest][i]
		}
	}
	if math.IsInf(e.larger[widest], 1) { // no query is larger
		return auxiliary + u*e.all
	}
	f, larger := e.fraction[widest], u*e.larger[widest]
	spare := larger - auxiliary*(1-f)/f // Eq. 14
	if spare <= 0 {
		return larger / (1 - f)
	}
	return auxiliary/f + spare/larger*u*e.all
}
