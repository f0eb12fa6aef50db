package place

import (
	"math"
	"slices"
)

// A simplex is a linear program, maximise cost*x with A x <= rhs and 0 <= x <= ub, and what solves
// it: the revised primal simplex method with bounds on the columns (Dantzig). Columns are sparse,
// and the inverse of the basis is dense, for there are few rows. Each rhs is >= 0, so the slacks
// are a basis to start from.
type simplex struct {
	rhs []float64 // by row
	// artificial is a row's cost of slack: 0 for an inequality, a large penalty for an equality.
	artificial []float64

	begin    []int32 // by column, where its entries begin; one more at the end
	row      []int32
	entry    []float64
	cost, ub []float64

	// Column j of the basis is structural if j >= 0, and the slack of row -1-j otherwise.
	basis   []int32
	inverse []float64
	value   []float64 // of the basis' columns
	at      []int8    // by structural column
	price   []float64 // the rows' duals
	change  []float64
	work    int // operations so far
}

// Where a structural column is.
const (
	atZero int8 = iota
	atUpper
	inBasis
)

const tolerance = 1e-8

func (l *simplex) reset() {
	l.rhs, l.artificial = l.rhs[:0], l.artificial[:0]
	l.begin, l.row, l.entry = append(l.begin[:0], 0), l.row[:0], l.entry[:0]
	l.cost, l.ub = l.cost[:0], l.ub[:0]
}

// addRow adds a row and returns its index.
func (l *simplex) addRow(rhs float64) int {
	l.rhs, l.artificial = append(l.rhs, rhs), append(l.artificial, 0)
	return len(l.rhs) - 1
}

// put adds an entry to the column that the next addColumn ends.
func (l *simplex) put(row int, entry float64) {
	l.row, l.entry = append(l.row, int32(row)), append(l.entry, entry)
}

// addColumn ends a column whose entries were put, and returns its index.
func (l *simplex) addColumn(cost, ub float64) int {
	l.begin = append(l.begin, int32(len(l.row)))
	l.cost, l.ub = append(l.cost, cost), append(l.ub, ub)
	return len(l.cost) - 1
}

func (l *simplex) slackOf(basic int32) (int, bool) { return int(-1 - basic), basic < 0 }

func (l *simplex) basicCost(k int) float64 {
	if i, ok := l.slackOf(l.basis[k]); ok {
		return l.artificial[i]
	}
	return l.cost[l.basis[k]]
}

func (l *simplex) start() {
	m := len(l.rhs)
	l.inverse = grown(l.inverse, m*m)
	clear(l.inverse)
	l.basis, l.price, l.change = grown(l.basis, m), grown(l.price, m), grown(l.change, m)
	l.value = append(l.value[:0], l.rhs...)
	l.at = grown(l.at, len(l.cost))
	clear(l.at)
	for i := range m {
		l.inverse[i*m+i] = 1
		l.basis[i] = int32(-1 - i)
	}
	l.work += m * m
}

// solve finds an optimum. If it must end early, because of rounding, the solution is feasible but
// may not be best; bound holds whatever the prices are.
func (l *simplex) solve() {
	l.start()
	m := len(l.rhs)
	stalled := 0
	l.reprice()
	exact := true // the prices come from the basis, not from the prices before
	for pivots := 1; pivots <= 50*(m+20)+len(l.cost); pivots++ {
		if pivots%100 == 0 {
			l.refactor()
			l.reprice()
			exact = true
		}
		j, direction, ok := l.enter(stalled > 2*m+20)
		if !ok && exact {
			return
		}
		if !ok {
			l.reprice()
			exact = true
			continue
		}
		exact = false
		step, ok := l.pivot(j, direction)
		if !ok {
			return // unbounded columns do not occur: all have bounds
		}
		if step > 1e-12 {
			stalled = 0
		} else {
			stalled++
		}
	}
	l.reprice()
}

func (l *simplex) reprice() {
	m := len(l.rhs)
	y := l.price
	clear(y)
	for k := range m {
		if c := l.basicCost(k); c != 0 {
			for i, v := range l.inverse[k*m : k*m+m] {
				y[i] += c * v
			}
			l.work += m
		}
	}
}

// reduced is what a unit of column j gains at the present prices.
func (l *simplex) reduced(j int) float64 {
	r := l.cost[j]
	for e := l.begin[j]; e < l.begin[j+1]; e++ {
		r -= l.price[l.row[e]] * l.entry[e]
	}
	return r
}

// enter chooses the column that gains most, or, so as not to cycle, the first that gains. A slack
// is slackOf(j).
func (l *simplex) enter(first bool) (best int32, direction float64, ok bool) {
	most := tolerance
	direction = 1
	for i, y := range l.price {
		if gain := l.artificial[i] - y; gain > most && !slices.Contains(l.basis, int32(-1-i)) {
			best, most, ok = int32(-1-i), gain, true
		}
	}
	if ok && first {
		return best, 1, true
	}
	l.work += len(l.row) + len(l.cost)
	for j, at := range l.at {
		if at == inBasis || l.ub[j] <= 0 {
			continue
		}
		gain, d := l.reduced(j), 1.0
		if at == atUpper {
			gain, d = -gain, -1
		}
		if gain > most {
			best, direction, most, ok = int32(j), d, gain, true
			if first {
				break
			}
		}
	}
	return best, direction, ok
}

// pivot moves column j from its bound, up or down, as far as the basis allows.
func (l *simplex) pivot(j int32, direction float64) (step float64, ok bool) {
	m := len(l.rhs)
	d := l.change
	clear(d)
	i, slack := l.slackOf(j)
	step = math.Inf(1)
	gain := 0.0 // of a unit of column j
	if slack {
		for k := range m {
			d[k] = l.inverse[k*m+i]
		}
		gain = l.artificial[i] - l.price[i]
	} else {
		gain = l.reduced(int(j))
		for e := l.begin[j]; e < l.begin[j+1]; e++ {
			r, v := int(l.row[e]), l.entry[e]*direction
			for k := range m {
				d[k] += l.inverse[k*m+r] * v
			}
		}
		step = l.ub[j]
	}
	l.work += 4 * m
	out, upper := -1, false
	for k, v := range d {
		var s float64
		up := false
		if v > tolerance {
			s = max(0, l.value[k]) / v
		} else if v < -tolerance && l.basis[k] >= 0 {
			s, up = max(0, l.ub[l.basis[k]]-l.value[k])/-v, true
		} else {
			continue
		}
		if s < step || s == step && out >= 0 && math.Abs(v) > math.Abs(d[out]) {
			step, out, upper = s, k, up
		}
	}
	if math.IsInf(step, 1) {
		return 0, false
	}
	for k := range m {
		l.value[k] -= step * d[k]
	}
	if out < 0 { // from one bound to the other
		l.at[j] = atUpper - l.at[j]
		return step, true
	}
	entering := step
	if direction < 0 {
		entering = l.ub[j] - step
	}
	if left := l.basis[out]; left >= 0 {
		l.at[left] = atZero
		if upper {
			l.at[left] = atUpper
		}
	}
	l.eliminate(out, direction)
	for i, v := range l.inverse[out*m : out*m+m] {
		l.price[i] += gain * v // so that the column's next gain is 0
	}
	l.work += m
	l.basis[out], l.value[out] = j, entering
	if !slack {
		l.at[j] = inBasis
	}
	return step, true
}

// eliminate updates the inverse for a column, of which direction times change is what it is in the
// basis' terms, in the place of basis column out.
func (l *simplex) eliminate(out int, direction float64) {
	m := len(l.rhs)
	pivot := l.change[out] * direction
	from := l.inverse[out*m : out*m+m]
	for i := range from {
		from[i] /= pivot
	}
	for k := range m {
		f := l.change[k] * direction
		if k == out || f == 0 {
			continue
		}
		to := l.inverse[k*m : k*m+m]
		for i, v := range from {
			to[i] -= f * v
		}
		l.work += m
	}
}

// refactor computes the inverse and the values anew from the basis, which rounding has spoilt.
func (l *simplex) refactor() {
	m := len(l.rhs)
	basis := slices.Clone(l.basis)
	was := slices.Clone(l.inverse)
	clear(l.inverse)
	for i := range m {
		l.inverse[i*m+i] = 1
	}
	taken := make([]bool, m)
	order := make([]int32, m)
	for _, j := range basis {
		clear(l.change)
		if i, ok := l.slackOf(j); ok {
			for k := range m {
				l.change[k] = l.inverse[k*m+i]
			}
		} else {
			for e := l.begin[j]; e < l.begin[j+1]; e++ {
				for k := range m {
					l.change[k] += l.inverse[k*m+int(l.row[e])] * l.entry[e]
				}
			}
		}
		out := -1
		for k, v := range l.change {
			if !taken[k] && (out < 0 || math.Abs(v) > math.Abs(l.change[out])) {
				out = k
			}
		}
		if math.Abs(l.change[out]) < 1e-11 { // singular by rounding: go on with what there was
			copy(l.inverse, was)
			return
		}
		taken[out], order[out] = true, j
		l.eliminate(out, 1)
	}
	copy(l.basis, order)
	rhs := slices.Clone(l.rhs)
	for j, at := range l.at {
		if at == atUpper {
			for e := l.begin[j]; e < l.begin[j+1]; e++ {
				rhs[l.row[e]] -= l.entry[e] * l.ub[j]
			}
		}
	}
	for k := range m {
		v := 0.0
		for i, r := range rhs {
			v += l.inverse[k*m+i] * r
		}
		l.value[k] = v
	}
	l.work += m * m
}

// solution writes the columns' values to x.
func (l *simplex) solution(x []float64) []float64 {
	x = grown(x, len(l.cost))
	for j, at := range l.at {
		x[j] = 0
		if at == atUpper {
			x[j] = l.ub[j]
		}
	}
	for k, j := range l.basis {
		if j >= 0 {
			x[j] = min(max(0, l.value[k]), l.ub[j])
		}
	}
	return x
}

// bound is a value that no solution exceeds, by the prices; it holds even if they are not the best,
// so it does not depend on tolerances.
func (l *simplex) bound() float64 {
	z := 0.0
	for i, y := range l.price {
		y = max(y, l.artificial[i])
		l.price[i] = y
		z += y * l.rhs[i]
	}
	for j := range l.cost {
		if r := l.reduced(j); r > 0 {
			z += r * l.ub[j]
		}
	}
	l.work += len(l.row)
	return z
}

func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}
