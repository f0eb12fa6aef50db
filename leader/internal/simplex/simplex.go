package simplex

import (
	"math"
	"slices"
)

// A Program is a linear program, maximise cost*x with A x <= rhs and 0 <= x <= ub, and what solves
// it: the revised primal simplex method with bounds on the columns (Dantzig). Columns are sparse,
// and the inverse of the basis is dense, for there are few rows. Each rhs is >= 0, so the slacks
// are a basis to start from. Reset begins a program; it keeps the buffers of the one before.
type Program struct {
	rhs []float64 // by row
	// Artificial is a row's cost of slack: 0 for an inequality, a large penalty for an equality.
	Artificial []float64
	// Cost is by column, Price by row: the row's dual.
	Cost, Price []float64
	// Work counts operations. Solve and Bound add to it.
	Work int

	begin []int32 // by column, where its entries begin; one more at the end
	row   []int32
	entry []float64
	ub    []float64

	// Column j of the basis is structural if j >= 0, and the slack of row -1-j otherwise.
	basis   []int32
	inverse []float64
	value   []float64 // of the basis' columns
	at      []int8    // by structural column
	change  []float64
	updates int // of the inverse since it was computed
}

// Where a structural column is.
const (
	atZero int8 = iota
	atUpper
	inBasis
)

const tolerance = 1e-8

// Reset removes all rows and columns.
func (l *Program) Reset() {
	l.rhs, l.Artificial = l.rhs[:0], l.Artificial[:0]
	l.begin, l.row, l.entry = append(l.begin[:0], 0), l.row[:0], l.entry[:0]
	l.Cost, l.ub = l.Cost[:0], l.ub[:0]
}

// AddRow adds a row and returns its index.
func (l *Program) AddRow(rhs float64) int {
	l.rhs, l.Artificial = append(l.rhs, rhs), append(l.Artificial, 0)
	return len(l.rhs) - 1
}

// AddCoefficient adds an entry to the column that the next AddColumn ends.
func (l *Program) AddCoefficient(row int, entry float64) {
	l.row, l.entry = append(l.row, int32(row)), append(l.entry, entry)
}

// AddColumn ends a column whose entries were put, and returns its index.
func (l *Program) AddColumn(cost, ub float64) int {
	l.begin = append(l.begin, int32(len(l.row)))
	l.Cost, l.ub = append(l.Cost, cost), append(l.ub, ub)
	return len(l.Cost) - 1
}

func (l *Program) slackOf(basic int32) (int, bool) { return int(-1 - basic), basic < 0 }

func (l *Program) basicCost(k int) float64 {
	if i, ok := l.slackOf(l.basis[k]); ok {
		return l.Artificial[i]
	}
	return l.Cost[l.basis[k]]
}

func (l *Program) start() {
	m := len(l.rhs)
	l.inverse = growTo(l.inverse, m*m)
	clear(l.inverse)
	l.basis, l.Price, l.change = growTo(l.basis, m), growTo(l.Price, m), growTo(l.change, m)
	l.value = append(l.value[:0], l.rhs...)
	l.at = growTo(l.at, len(l.Cost))
	clear(l.at)
	for i := range m {
		l.inverse[i*m+i] = 1
		l.basis[i] = int32(-1 - i)
	}
	l.updates = 0
	l.Work += m * m
}

// Resume goes on from where Solve ended, after columns were added.
func (l *Program) Resume() {
	for len(l.at) < len(l.Cost) {
		l.at = append(l.at, atZero)
	}
	l.optimize()
}

// Solve finds an optimum. If it must end early, because of rounding, the solution is feasible but
// may not be best; Bound holds whatever the prices are.
func (l *Program) Solve() {
	l.start()
	l.optimize()
}

// maxUpdates bounds the updates of the inverse, each of which adds rounding. Chosen: a fresh
// inverse costs as much as some dozen updates, so the cost is spread over many.
const maxUpdates = 100

// optimize pivots from the present basis until no column gains.
func (l *Program) optimize() {
	m := len(l.rhs)
	stalled := 0
	l.computePrices()
	exact := true // the prices come from the basis, not from the prices before
	for range 50*(m+20) + len(l.Cost) {
		if l.updates++; l.updates == maxUpdates {
			l.updates = 0
			l.refactorBasis()
			l.computePrices()
			exact = true
		}
		j, direction, ok := l.chooseEntering(stalled > 2*m+20)
		if !ok && exact {
			return
		}
		if !ok {
			l.computePrices()
			exact = true
			continue
		}
		exact = false
		step, ok := l.pivotColumn(j, direction)
		if !ok {
			return // unbounded columns do not occur: all have bounds
		}
		if step > 1e-12 {
			stalled = 0
		} else {
			stalled++
		}
	}
	l.computePrices()
}

func (l *Program) computePrices() {
	m := len(l.rhs)
	y := l.Price
	clear(y)
	for k := range m {
		if c := l.basicCost(k); c != 0 {
			for i, v := range l.inverse[k*m : k*m+m] {
				y[i] += c * v
			}
			l.Work += m
		}
	}
}

// reducedGain is what a unit of column j gains at the present prices.
func (l *Program) reducedGain(j int) float64 {
	r := l.Cost[j]
	for e := l.begin[j]; e < l.begin[j+1]; e++ {
		r -= l.Price[l.row[e]] * l.entry[e]
	}
	return r
}

// chooseEntering chooses the column that gains most, or, so as not to cycle, the first that gains.
// A slack is slackOf(j).
func (l *Program) chooseEntering(first bool) (best int32, direction float64, ok bool) {
	most := tolerance
	direction = 1
	for i, y := range l.Price {
		if gain := l.Artificial[i] - y; gain > most && !slices.Contains(l.basis, int32(-1-i)) {
			best, most, ok = int32(-1-i), gain, true
		}
	}
	if ok && first {
		return best, 1, true
	}
	l.Work += len(l.row) + len(l.Cost)
	for j, at := range l.at {
		if at == inBasis || l.ub[j] <= 0 {
			continue
		}
		gain, d := l.reducedGain(j), 1.0
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

// pivotColumn moves column j from its bound, up or down, as far as the basis allows.
func (l *Program) pivotColumn(j int32, direction float64) (step float64, ok bool) {
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
		gain = l.Artificial[i] - l.Price[i]
	} else {
		gain = l.reducedGain(int(j))
		for e := l.begin[j]; e < l.begin[j+1]; e++ {
			r, v := int(l.row[e]), l.entry[e]*direction
			for k := range m {
				d[k] += l.inverse[k*m+r] * v
			}
		}
		step = l.ub[j]
	}
	l.Work += 4 * m
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
	l.updateInverse(out, direction)
	for i, v := range l.inverse[out*m : out*m+m] {
		l.Price[i] += gain * v // so that the column's next gain is 0
	}
	l.Work += m
	l.basis[out], l.value[out] = j, entering
	if !slack {
		l.at[j] = inBasis
	}
	return step, true
}

// updateInverse updates the inverse for a column, of which direction times change is what it is in
// the basis' terms, in the place of basis column out.
func (l *Program) updateInverse(out int, direction float64) {
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
		l.Work += m
	}
}

// refactorBasis computes the inverse and the values anew from the basis, which rounding has spoilt.
func (l *Program) refactorBasis() {
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
		l.updateInverse(out, 1)
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
	l.Work += m * m
}

// Solution writes the columns' values to x.
func (l *Program) Solution(x []float64) []float64 {
	x = growTo(x, len(l.Cost))
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

// Bound is a value that no solution exceeds, by the prices; it holds even if they are not the best,
// so it does not depend on tolerances.
func (l *Program) Bound() float64 {
	z := 0.0
	for i, y := range l.Price {
		y = max(y, l.Artificial[i])
		l.Price[i] = y
		z += y * l.rhs[i]
	}
	for j := range l.Cost {
		if r := l.reducedGain(j); r > 0 {
			z += r * l.ub[j]
		}
	}
	l.Work += len(l.row)
	return z
}

// growTo returns s with length n; its contents are undefined.
func growTo[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}
