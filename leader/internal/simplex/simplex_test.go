package simplex

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestSolve: the solution of random programs is feasible, and worth what the duals say that no
// solution exceeds. So by duality none is worth more.
func TestSolve(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var l Program // reused, as searches do
	for i := range 2000 {
		rows, columns := 1+r.IntN(8), 1+r.IntN(12)
		l.Reset()
		rhs := make([]float64, rows)
		for k := range rhs {
			rhs[k] = float64(r.IntN(20))
			if l.AddRow(rhs[k]) != k {
				t.Fatal("rows are not numbered in order")
			}
		}
		matrix, bounds := make([][]float64, columns), make([]float64, columns)
		for j := range columns {
			matrix[j] = make([]float64, rows)
			for k := range rows {
				if r.IntN(2) == 0 {
					matrix[j][k] = r.Float64()*10 - 2
					l.AddCoefficient(k, matrix[j][k])
				}
			}
			bounds[j] = float64(r.IntN(6))
			l.AddColumn(r.Float64()*10-3, bounds[j])
		}
		l.Solve()
		used, value := make([]float64, rows), 0.
		for j, x := range l.Solution(nil) {
			if x < 0 || x > bounds[j] {
				t.Fatalf("program %d: column %d is %v, want within [0, %v]", i, j, x, bounds[j])
			}
			value += x * l.Cost[j]
			for k, entry := range matrix[j] {
				used[k] += x * entry
			}
		}
		for k := range used {
			if used[k] > rhs[k]+1e-6 {
				t.Fatalf("program %d: row %d uses %v, want at most %v", i, k, used[k], rhs[k])
			}
		}
		if bound := l.Bound(); math.Abs(bound-value) > 1e-6*(1+math.Abs(value)) {
			t.Fatalf("program %d: the solution is worth %v, and no solution more than %v", i, value,
				bound)
		}
	}
}
