package workload

import "math/rand/v2"

// An aliasTable draws an index by its weight in constant time (Walker's alias
// method, as built by Vose).
type aliasTable struct {
	keep  []float64 // probability to keep the index that was drawn uniformly
	other []int32   // the index to return otherwise
}

// newAliasTable takes weights >= 0 with a positive sum.
func newAliasTable(weights []float64) aliasTable {
	n := len(weights)
	t := aliasTable{keep: make([]float64, n), other: make([]int32, n)}
	var total float64
	for _, w := range weights {
		total += w
	}
	var small, large []int32
	scaled := make([]float64, n)
	for i, w := range weights {
		scaled[i] = w / total * float64(n)
		if scaled[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		t.keep[s], t.other[s] = scaled[s], l
		if scaled[l] -= 1 - scaled[s]; scaled[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, i := range append(small, large...) { // their probability is 1, up to rounding errors
		t.keep[i], t.other[i] = 1, i
	}
	return t
}

func (t aliasTable) draw(r *rand.Rand) int {
	i := r.IntN(len(t.keep))
	if r.Float64() < t.keep[i] {
		return i
	}
	return int(t.other[i])
}
