// Package work turns what a query has (rows, users, values of ragged features) into its work: the
// batch size of a query with rows alone that would take as long. A ranking model with a history or
// a user part takes longer for more users or values at the same rows.
//
// [Learn] learns a [Law] from measured runs. It also says, on runs that it did not learn from, how
// far predictions by rows alone and by work are off. Rows alone are right for a model whose queries
// have neither users nor values, or where these do not count.
package work

import (
	"math"
	"slices"
	"sort"
	"time"
)

// A Run is one measured run.
type Run struct {
	Rows, Users, Values int
	Took                time.Duration // > 0
}

// A Law says how many rows a user and a value take as long as; both are >= 0. The zero Law is rows
// alone.
type Law struct{ PerUser, PerValue float64 }

// NewLaw returns the law of numbers that another machine has sent; the zero Law if they make no sense.
func NewLaw(perUser, perValue float64) Law {
	if !(perUser >= 0 && perUser <= maxRatio && perValue >= 0 && perValue <= maxRatio) {
		return Law{}
	}
	return Law{perUser, perValue}
}

// maxRatio is far more rows than a user takes as long as: a batch has at most 65,536 of them.
const maxRatio = 1e6

// Work is the work of a query in rows, not rounded.
func (l Law) Work(rows, users, values int) float64 {
	return float64(rows) + l.PerUser*float64(users) + l.PerValue*float64(values)
}

// Size is the work rounded up to a batch size, at least 1. Of the zero Law it is rows.
func (l Law) Size(rows, users, values int) int {
	return max(1, int(math.Ceil(l.Work(rows, users, values)-roundingError)))
}

// roundingError keeps a work that is a whole number but for rounding from being rounded up.
const roundingError = 1e-9

// A Fit is what Learn found.
type Fit struct {
	Law  Law // that fits all runs best
	Runs int
	// RowsError and WorkError are the mean relative errors of predictions of held-out runs, by rows
	// alone and by work.
	RowsError, WorkError float64
	// IsBetter says that work predicts held-out runs better than rows alone, surely: by more than
	// minGain and by more than two standard errors.
	IsBetter bool
}

const (
	// folds is how many parts the runs have, each of which is held out once.
	folds = 5
	// minRuns are needed: less would leave a fold with too few to compare.
	minRuns = 10 * folds
	// minGain is the part of the error that work must save to be worth another number in each
	// message. Chosen; less than this is lost in the noise of one machine.
	minGain = 0.02
)

// Learn learns a law from runs, in any order. Too few runs, or none whose users or values differ
// otherwise than their rows do, give the zero Law.
func Learn(runs []Run) Fit {
	fit := Fit{Runs: len(runs)}
	if len(runs) < minRuns {
		return fit
	}
	fit.Law = learnLaw(runs)
	var gains []float64
	for fold := range folds {
		var learned, held []Run
		for i, r := range runs {
			// Neighbours are often alike, and a stride could meet a pattern of the runs: the bits of a
			// multiplicative hash deal them out.
			if int(uint64(i)*0x9E3779B97F4A7C15>>32)%folds == fold {
				held = append(held, r)
			} else {
				learned = append(learned, r)
			}
		}
		law := learnLaw(learned)
		rows, work := newCurve(learned, Law{}), newCurve(learned, law)
		for _, r := range held {
			by := errorOf(r, rows.at(Law{}.Work(r.Rows, r.Users, r.Values)))
			byWork := errorOf(r, work.at(law.Work(r.Rows, r.Users, r.Values)))
			fit.RowsError += by
			fit.WorkError += byWork
			gains = append(gains, by-byWork)
		}
	}
	n := float64(len(gains))
	fit.RowsError /= n
	fit.WorkError /= n
	gain := fit.RowsError - fit.WorkError
	var squares float64
	for _, g := range gains {
		squares += (g - gain) * (g - gain)
	}
	fit.IsBetter = gain > minGain*fit.RowsError && gain > 2*math.Sqrt(squares/n/(n-1))
	return fit
}

// errorOf is the relative error of a prediction in s.
func errorOf(r Run, predicted float64) float64 {
	took := r.Took.Seconds()
	return math.Abs(predicted-took) / took
}

// learnLaw fits runs by took = a + b rows + c users + d values, with the least squares of relative
// errors and without coefficients below 0, of which there are so few that all subsets are tried.
// The law is (c/b, d/b).
func learnLaw(runs []Run) (law Law) {
	best := math.Inf(1)
	for subset := range 4 {
		columns := []func(Run) float64{
			func(Run) float64 { return 1 }, func(r Run) float64 { return float64(r.Rows) },
		}
		if subset&1 != 0 {
			columns = append(columns, func(r Run) float64 { return float64(r.Users) })
		}
		if subset&2 != 0 {
			columns = append(columns, func(r Run) float64 { return float64(r.Values) })
		}
		x, squares, ok := leastSquares(runs, columns)
		if !ok || x[1] <= 0 || slices.ContainsFunc(x[2:], func(c float64) bool { return c < 0 }) ||
			squares >= best*(1-1e-9) {
			continue
		}
		best, law = squares, Law{}
		if subset&1 != 0 {
			law.PerUser = x[2] / x[1]
		}
		if subset&2 != 0 {
			law.PerValue = x[len(x)-1] / x[1]
		}
	}
	return law
}

// leastSquares solves for the coefficients of columns. ok is false if they are not independent.
func leastSquares(runs []Run, columns []func(Run) float64) (x []float64, squares float64, ok bool) {
	n := len(columns)
	a := make([][]float64, n) // the normal equations, with the right side in the last column
	for i := range a {
		a[i] = make([]float64, n+1)
	}
	row := make([]float64, n)
	for _, r := range runs {
		for i, column := range columns {
			row[i] = column(r) / r.Took.Seconds()
		}
		for i := range n {
			for j := range n {
				a[i][j] += row[i] * row[j]
			}
			a[i][n] += row[i]
		}
	}
	diagonal := make([]float64, n)
	for i := range n {
		diagonal[i] = a[i][i]
	}
	// The matrix is symmetric and not negative: elimination needs no pivots. What a column has left
	// after those before it are taken out is the part of it that they do not explain.
	for i := range n {
		if !(a[i][i] > 1e-9*diagonal[i]) {
			return nil, 0, false
		}
		for j := i + 1; j < n; j++ {
			factor := a[j][i] / a[i][i]
			for k := i; k <= n; k++ {
				a[j][k] -= factor * a[i][k]
			}
		}
	}
	x = make([]float64, n)
	for i := n - 1; i >= 0; i-- {
		x[i] = a[i][n]
		for j := i + 1; j < n; j++ {
			x[i] -= a[i][j] * x[j]
		}
		x[i] /= a[i][i]
	}
	for _, r := range runs {
		predicted := 0.0
		for i, column := range columns {
			predicted += x[i] * column(r)
		}
		e := predicted/r.Took.Seconds() - 1
		squares += e * e
	}
	return x, squares, true
}

// A curve predicts how long a run of a work takes: never less for more work. It is the isotonic
// regression of the runs, linear between their works, and constant beyond them, so that rows alone
// are not held to be a line, which a profile is not either.
type curve struct{ works, took []float64 } // ascending, of blocks of runs

func newCurve(runs []Run, law Law) *curve {
	type point struct{ work, took, weight float64 }
	points := make([]point, len(runs))
	for i, r := range runs {
		points[i] = point{law.Work(r.Rows, r.Users, r.Values), r.Took.Seconds(), 1}
	}
	slices.SortStableFunc(points, func(a, b point) int {
		switch {
		case a.work < b.work:
			return -1
		case a.work > b.work:
			return 1
		}
		return 0
	})
	var blocks []point // pooled adjacent violators
	for _, p := range points {
		for len(blocks) > 0 {
			last := blocks[len(blocks)-1]
			if last.took < p.took && last.work < p.work {
				break
			}
			weight := last.weight + p.weight
			p = point{
				(last.work*last.weight + p.work*p.weight) / weight,
				(last.took*last.weight + p.took*p.weight) / weight, weight,
			}
			blocks = blocks[:len(blocks)-1]
		}
		blocks = append(blocks, p)
	}
	c := &curve{}
	for _, b := range blocks {
		c.works, c.took = append(c.works, b.work), append(c.took, b.took)
	}
	return c
}

// at predicts the time of a run of a work, in s.
func (c *curve) at(work float64) float64 {
	i := sort.SearchFloat64s(c.works, work)
	switch {
	case i == 0:
		return c.took[0]
	case i == len(c.works):
		return c.took[i-1]
	}
	part := (work - c.works[i-1]) / (c.works[i] - c.works[i-1])
	return c.took[i-1] + part*(c.took[i]-c.took[i-1])
}
