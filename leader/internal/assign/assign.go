// Package assign solves the assignment problems of package match.
package assign

import (
	"fmt"
	"math"
)

// A Solver solves linear sum assignment problems: it matches rows to columns, each at most
// once, at the least total cost. It keeps its buffers, so it does not allocate once it has solved
// the largest problem. The zero value is ready to use. It is not safe for concurrent use.
//
// The method is that of Jonker and Volgenant (Computing 38, 1987): a greedy start by augmenting row
// reduction, then a shortest augmenting path for each row still free, in the rectangular form of
// Crouse (IEEE TAES 52, 2016), which SciPy's linear_sum_assignment uses too.
type Solver struct {
	transposed, feasible []float64
	u, v, shortest       []float64
	rowOf, columnOf      []int32 // -1: free
	path, todo, free     []int32
	scanned              []int32
}

// Solve matches rows to columns at the least total cost. The cost of row i at column j is
// cost[i*columns+j]; +Inf forbids the pair. Solve matches as many pairs as it can: the whole
// shorter side, unless forbidden pairs prevent it. Among the matchings of that size it finds the
// cheapest. match, of length rows, receives the column of each row, or -1. The results are the sum
// of the costs of the matched pairs and their number. NaN or -Inf in cost, or slices of the wrong
// length, are errors.
func (a *Solver) Solve(cost []float64, rows, columns int, match []int) (total float64,
	matched int, err error) {
	if rows < 0 || columns < 0 || len(cost) != rows*columns || len(match) != rows {
		return 0, 0, fmt.Errorf(
			"assignment of %d rows to %d columns: got %d costs and room for %d matches, want %d "+
				"and %d",
			rows, columns, len(cost), len(match), rows*columns, rows)
	}
	forbidden := false
	if !allFinite(cost) {
		for i, c := range cost {
			if !(c > math.Inf(-1)) {
				return 0, 0, fmt.Errorf(
					"assignment: cost of row %d at column %d is %v, want a number or +Inf",
					i/columns, i%columns, c)
			}
			forbidden = forbidden || c > math.MaxFloat64
		}
	}
	for i := range match {
		match[i] = -1
	}
	c, n, m := cost, rows, columns
	if n > m {
		c, n, m = a.transposeCost(cost, rows, columns), columns, rows
	}
	if a.solve(c, n, m) < n && forbidden {
		// Forbidden pairs prevented a full matching. Solve again with a finite price for them that
		// exceeds the cost of all allowed pairs together: that matches as many allowed pairs as
		// possible.
		low, high := math.Inf(1), math.Inf(-1)
		for _, x := range c {
			if x <= math.MaxFloat64 {
				low, high = min(low, x), max(high, x)
			}
		}
		if low > high { // no pair is allowed
			return 0, 0, nil
		}
		price := high + (high-low+1)*float64(n+1)
		a.feasible = grow(a.feasible, len(c))
		for i, x := range c {
			a.feasible[i] = min(x, price)
		}
		a.solve(a.feasible, n, m)
	}
	for i, j := range a.columnOf[:n] {
		if j < 0 || c[i*m+int(j)] > math.MaxFloat64 {
			continue
		}
		total += c[i*m+int(j)]
		matched++
		if rows > columns {
			match[j] = i
		} else {
			match[i] = int(j)
		}
	}
	return total, matched, nil
}

// allFinite reports whether all of c are finite numbers.
func allFinite(c []float64) bool {
	// 0 * x is NaN if x is not finite, and a sum with NaN stays NaN. There are four sums because
	// each addition waits for the one before it to the same sum.
	var s0, s1, s2, s3 float64
	for len(c) >= 4 {
		s0 += 0 * c[0]
		s1 += 0 * c[1]
		s2 += 0 * c[2]
		s3 += 0 * c[3]
		c = c[4:]
	}
	for _, x := range c {
		s0 += 0 * x
	}
	return s0+s1+s2+s3 == 0
}

func (a *Solver) transposeCost(cost []float64, rows, columns int) []float64 {
	a.transposed = grow(a.transposed, len(cost))
	const block = 16
	for i0 := 0; i0 < rows; i0 += block {
		for j0 := 0; j0 < columns; j0 += block {
			for i := i0; i < min(i0+block, rows); i++ {
				row := cost[i*columns : (i+1)*columns]
				for j := j0; j < min(j0+block, columns); j++ {
					a.transposed[j*rows+i] = row[j]
				}
			}
		}
	}
	return a.transposed
}

// solve matches n rows to m >= n columns into columnOf and returns how many it
// could match. u and v are the dual variables: c[i][j] - u[i] - v[j] is >= 0, and 0 on
// matched pairs; v <= 0, and 0 at free columns.
func (a *Solver) solve(c []float64, n, m int) (matched int) {
	a.u, a.v, a.shortest = grow(a.u, n), grow(a.v, m), grow(a.shortest, m)
	a.rowOf, a.columnOf = grow(a.rowOf, m), grow(a.columnOf, n)
	a.path, a.todo, a.free = grow(a.path, m), grow(a.todo, m), grow(a.free, n)
	a.scanned = grow(a.scanned, m)
	for j := range a.v {
		a.v[j], a.rowOf[j] = 0, -1
	}
	for i := range a.columnOf {
		a.columnOf[i] = -1
		a.free[i] = int32(i)
	}
	a.free = a.reduceRows(c, m, a.free)
	for i, j := range a.columnOf {
		if j >= 0 {
			a.u[i] = c[i*m+int(j)] - a.v[j]
		} else {
			a.u[i] = 0
		}
	}
	matched = n - len(a.free)
	for _, i := range a.free {
		if a.augmentRow(c, m, int(i)) {
			matched++
		}
	}
	return matched
}

// reduceRows gives each free row its cheapest column, and lowers that column's dual until the row's
// second cheapest column costs as much. A row that loses its column in this way is tried again at
// once, but not too often: half as many tries as rows was fastest from 10 to 1,000 rows. It returns
// the rows left free, in the same memory.
func (a *Solver) reduceRows(c []float64, m int, free []int32) []int32 {
	left := free[:0]
	budget := len(free) / 2
	v := a.v[:m]
	for k := 0; k < len(free); {
		i := free[k]
		row := c[int(i)*m:][:len(v)]
		first, second := math.Inf(1), math.Inf(1)
		j1, j2 := -1, -1
		for j, x := range row {
			if x -= v[j]; x < second {
				if x < first {
					second, j2 = first, j1
					first, j1 = x, j
				} else {
					second, j2 = x, j
				}
			}
		}
		k++
		if j1 < 0 { // nothing is allowed
			left = append(left, i)
			continue
		}
		out := a.rowOf[j1]
		strict := first < second && second <= math.MaxFloat64
		if strict {
			v[j1] -= second - first
		} else if out >= 0 && j2 >= 0 && first == second {
			j1 = j2
			out = a.rowOf[j1]
		}
		if out >= 0 && !strict { // the column is taken, and nothing was gained
			left = append(left, i)
			continue
		}
		a.rowOf[j1], a.columnOf[i] = i, int32(j1)
		if out < 0 {
			continue
		}
		a.columnOf[out] = -1
		if budget--; budget > 0 {
			k--
			free[k] = out
		} else {
			left = append(left, out)
		}
	}
	return left
}

// augmentRow matches row i along a shortest augmenting path, and reports whether there was one.
func (a *Solver) augmentRow(c []float64, m, i int) bool {
	row := c[i*m:][:m]
	shortest, path, todo, v := a.shortest[:len(row)], a.path[:len(row)], a.todo[:len(
		row)], a.v[:len(row)]
	scanned := a.scanned[:0]
	least, next := math.Inf(1), -1
	for j, x := range row { // the row's own columns come first
		x -= v[j] + a.u[i]
		todo[j], path[j], shortest[j] = int32(j), int32(i), x
		if x < least {
			least, next = x, j
		}
	}
	sink := int32(-1)
	for {
		if next < 0 {
			return false
		}
		j := todo[next]
		last := len(todo) - 1
		todo[next] = todo[last]
		todo = todo[:last]
		at := a.rowOf[j]
		if at < 0 {
			sink = j
			break
		}
		scanned = append(scanned, j)
		row := c[int(at)*m:][:len(v)]
		offset, lowest := least-a.u[at], math.Inf(1)
		next = -1
		for k, j := range todo {
			d := shortest[j]
			if x := offset + row[j] - v[j]; x < d {
				d = x
				shortest[j], path[j] = x, at
			}
			if d < lowest {
				next, lowest = k, d
				// a free column ends the search
			} else if d == lowest && d <= math.MaxFloat64 && a.rowOf[j] < 0 {
				next = k
			}
		}
		least = lowest
	}
	a.u[i] += least
	for _, j := range scanned {
		slack := least - shortest[j]
		a.u[a.rowOf[j]] += slack
		v[j] -= slack
	}
	for j := sink; ; {
		at := path[j]
		a.rowOf[j] = at
		j, a.columnOf[at] = a.columnOf[at], j
		if int(at) == i {
			return true
		}
	}
}

// grow returns a slice of length n, s itself if it has room.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}
