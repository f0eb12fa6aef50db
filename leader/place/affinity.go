package place

// A Machine is what models share that run side by side.
type Machine struct {
	Cores     int
	Ways      int     // of the last-level cache; 0: it cannot be parted
	Bandwidth float64 // of the memory, GB/s
}

// A Profile is what a model does on a machine of which it has some workers, a core each, and some
// ways of the cache.
type Profile struct {
	Model string
	// QPS is queries/s by workers, 0 to Cores, and ways, 0 to Ways.
	QPS [][]float64
	// Bandwidth is the memory bandwidth that workers on half of the cores take with all of the
	// cache, GB/s.
	Bandwidth float64
	// Low says that more workers soon bring no more queries/s: low worker scalability.
	Low bool
	// Slowdown is by neighbour how much longer queries take beside it, each model on half of the
	// cores; as it was measured. A neighbour without one is reckoned with by ways and Bandwidth.
	Slowdown map[string]float64
}

// shareLeft is the part of its queries/s that p has left beside a neighbour, if that was measured.
func (p *Profile) shareLeft(beside *Profile) (part float64, measured bool) {
	s := p.Slowdown[beside.Model]
	if s <= 0 {
		return 1, false
	}
	return min(1, 1/s), true
}

// Most is the most queries/s of one machine that has no other model.
func (p *Profile) Most() float64 {
	most := 0.0
	for _, by := range p.QPS {
		for _, qps := range by {
			most = max(most, qps)
		}
	}
	return most
}

// Affinity is how little two models hurt each other side by side, in [0, 1], where 1 is not at all:
// Hera's Algorithm 1, the least of what cache and memory bandwidth leave. Each model gets a way at
// least, where the paper's loop would leave the second one none. Where the cache cannot be parted
// and both slowdowns were measured, it is the mean of what these leave: they hold both reasons.
func (m Machine) Affinity(a, b *Profile) float64 {
	if ofA, ofB, measured := m.slowedDown(a, b); measured {
		return (ofA + ofB) / 2
	}
	half := m.Cores / 2
	kept := func(p *Profile, ways int) float64 {
		if all := p.QPS[half][m.Ways]; all > 0 {
			return p.QPS[half][ways] / all
		}
		return 0
	}
	cache := 0.0
	for i := 1; i < m.Ways; i++ {
		cache = max(cache, (kept(a, i)+kept(b, m.Ways-i))/2)
	}
	if m.Ways < 2 {
		cache = 1
	}
	return min(cache, m.bandwidthLeft(a.Bandwidth+b.Bandwidth))
}

// slowedDown returns the parts of their queries/s that two models have left beside each other by
// measured slowdowns. These count only where the cache cannot be parted, as it was when they were
// measured.
func (m Machine) slowedDown(a, b *Profile) (ofA, ofB float64, measured bool) {
	ofA, hasA := a.shareLeft(b)
	ofB, hasB := b.shareLeft(a)
	return ofA, ofB, hasA && hasB && m.Ways < 2
}

// bandwidthLeft is the part of their queries/s that models have left which would take so much
// bandwidth, GB/s.
func (m Machine) bandwidthLeft(wanted float64) float64 {
	if wanted <= m.Bandwidth {
		return 1
	}
	return m.Bandwidth / wanted
}

// A Split is how two models share a machine, and the queries/s that each has then.
type Split struct {
	Workers, Ways [2]int
	QPS           [2]float64
}

// Utilisation is the effective machine utilisation of a split: the parts of what each model has
// alone, summed.
func (s Split) Utilisation(a, b *Profile) float64 {
	sum := 0.0
	for i, p := range []*Profile{a, b} {
		if most := p.Most(); most > 0 {
			sum += s.QPS[i] / most
		}
	}
	return sum
}

// Splits returns all splits of the cores and ways between two models. A split's queries/s are what
// both have by their profiles, times what the memory's bandwidth leaves of them.
func (m Machine) Splits(a, b *Profile) []Split {
	var splits []Split
	perWorker := func(p *Profile) float64 { return p.Bandwidth / float64(max(1, m.Cores/2)) }
	for w := 1; w < m.Cores; w++ {
		rest := m.Cores - w
		left := m.bandwidthLeft(perWorker(a)*float64(w) + perWorker(b)*float64(rest))
		if m.Ways < 2 {
			ofA, ofB, measured := m.slowedDown(a, b)
			if !measured {
				ofA, ofB = left, left
			}
			splits = append(splits, Split{
				Workers: [2]int{w, rest},
				QPS:     [2]float64{a.QPS[w][m.Ways] * ofA, b.QPS[rest][m.Ways] * ofB},
			})
		}
		for i := 1; i < m.Ways; i++ {
			splits = append(splits, Split{
				Workers: [2]int{w, rest}, Ways: [2]int{i, m.Ways - i},
				QPS: [2]float64{a.QPS[w][i] * left, b.QPS[rest][m.Ways-i] * left},
			})
		}
	}
	return splits
}

// BestSplit is the split with the highest utilisation; of several the first. A machine of one core
// has none: both models have nothing.
func (m Machine) BestSplit(a, b *Profile) Split {
	var best Split
	highest := -1.0
	ofA, ofB := a.Most(), b.Most()
	for _, s := range m.Splits(a, b) {
		u := 0.0
		if ofA > 0 {
			u += s.QPS[0] / ofA
		}
		if ofB > 0 {
			u += s.QPS[1] / ofB
		}
		if u > highest {
			best, highest = s, u
		}
	}
	return best
}

// GoodSplits are the splits than which no other has more queries/s of both models.
func (m Machine) GoodSplits(a, b *Profile) []Split {
	all := m.Splits(a, b)
	var good []Split
	for i, s := range all {
		beaten := s.QPS[0] <= 0 && s.QPS[1] <= 0
		for j, o := range all {
			if beaten {
				break
			}
			better := o.QPS[0] >= s.QPS[0] && o.QPS[1] >= s.QPS[1]
			same := o.QPS == s.QPS
			beaten = better && (!same || j < i)
		}
		if !beaten {
			good = append(good, s)
		}
	}
	return good
}
