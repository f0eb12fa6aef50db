package assign

import (
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// bruteForce returns the largest number of allowed pairs, and the least cost
// of that many.
func bruteForce(cost []float64, rows, columns int) (total float64, matched int) {
	used := make([]bool, columns)
	best, most := 0.0, 0
	var try func(i, n int, sum float64)
	try = func(i, n int, sum float64) {
		if i == rows {
			if n > most || n == most && sum < best {
				best, most = sum, n
			}
			return
		}
		try(i+1, n, sum)
		for j := range columns {
			if c := cost[i*columns+j]; !used[j] && !math.IsInf(c, 1) {
				used[j] = true
				try(i+1, n+1, sum+c)
				used[j] = false
			}
		}
	}
	try(0, 0, 0)
	return best, most
}

func checkMatch(t *testing.T, cost []float64, rows, columns int, match []int, total float64,
	matched int) {
	t.Helper()
	used := map[int]bool{}
	sum, n := 0.0, 0
	for i, j := range match {
		if j < 0 {
			continue
		}
		if used[j] {
			t.Fatalf("column %d is matched twice in %v", j, match)
		}
		used[j] = true
		sum += cost[i*columns+j]
		n++
	}
	if n != matched || math.Abs(sum-total) > 1e-9*(1+math.Abs(sum)) {
		t.Fatalf("match %v: got %d pairs at %v, but they are %d at %v", match, matched, total, n,
			sum)
	}
}

func TestAssignmentAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var a Solver
	for range 20000 {
		rows, columns := r.IntN(6), r.IntN(6)
		cost := make([]float64, rows*columns)
		kind, forbid := r.IntN(4), r.IntN(3)
		for i := range cost {
			switch kind {
			case 0:
				cost[i] = r.Float64()
			case 1:
				cost[i] = float64(r.IntN(3))
			case 2:
				cost[i] = r.NormFloat64() * 1e6
			case 3:
				cost[i] = 7
			}
			if r.IntN(4) < forbid {
				cost[i] = math.Inf(1)
			}
		}
		match := make([]int, rows)
		total, matched, err := a.Solve(cost, rows, columns, match)
		if err != nil {
			t.Fatal(err)
		}
		checkMatch(t, cost, rows, columns, match, total, matched)
		want, most := bruteForce(cost, rows, columns)
		if matched != most || math.Abs(total-want) > 1e-9*(1+math.Abs(want)) {
			t.Fatalf("%dx%d %v: got %d pairs at %v, want %d at %v", rows, columns, cost, matched,
				total, most, want)
		}
	}
}

func TestAssignmentRefuses(t *testing.T) {
	var a Solver
	for _, cost := range [][]float64{{1, math.NaN()}, {math.Inf(-1), 1}, {1}} {
		if _, _, err := a.Solve(cost, 1, 2, make([]int, 1)); err == nil {
			t.Errorf("costs %v: no error", cost)
		}
	}
	if _, _, err := a.Solve([]float64{1, 2}, 1, 2, nil); err == nil {
		t.Error("no room for the match: no error")
	}
}

func TestAssignmentDoesNotAllocate(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	cost := make([]float64, 30*20)
	for i := range cost {
		cost[i] = r.Float64()
	}
	cost[7] = math.Inf(1)
	var a Solver
	match := make([]int, 30)
	solve := func() {
		if _, _, err := a.Solve(cost, 30, 20, match); err != nil {
			t.Fatal(err)
		}
	}
	solve()
	if n := testing.AllocsPerRun(100, solve); n != 0 {
		t.Errorf("got %v allocations a call, want 0", n)
	}
}

// matrix makes the matrix that scripts/tools/answers/assignment.py makes from the
// same arguments; the kinds are described there.
func matrix(seed uint64, kind string, rows, columns int) []float64 {
	cost := make([]float64, rows*columns)
	rowFirst := 0.0
	for k := range cost {
		i, j := k/columns, k%columns
		x := seed + uint64(k+1)*0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
		u := float64(x>>11) / (1 << 53)
		if j == 0 {
			rowFirst = u
		}
		switch kind {
		case "uniform":
			cost[k] = u
		case "ties":
			cost[k] = math.Floor(4 * u)
		case "integers":
			cost[k] = math.Floor(1000 * u)
		case "constant":
			cost[k] = 7
		case "product":
			cost[k] = float64(i+1) * float64(j+1)
		case "sparse":
			cost[k] = u
			if x%2048 < 1024 {
				cost[k] = math.Inf(1)
			}
		case "columns":
			a, b := [4]float64{0.7, 0.2, 0.5, 0.1}, [4]float64{1, 3, 4, 8}
			cost[k] = a[j%4] + b[j%4]*rowFirst
		default:
			panic("no kind " + kind)
		}
	}
	return cost
}

// TestAssignmentAgainstSciPy compares the optimal costs with those that
// scripts/tools/answers/assignment.py had from SciPy.
func TestAssignmentAgainstSciPy(t *testing.T) {
	const path = "testdata/answers.csv"
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	answers, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(answers) < 3000 {
		t.Fatalf("%s has %d lines, want thousands", path, len(answers))
	}
	var a Solver
	for _, answer := range answers[1:] {
		seed, err1 := strconv.ParseUint(answer[0], 10, 64)
		rows, err2 := strconv.Atoi(answer[2])
		columns, err3 := strconv.Atoi(answer[3])
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatalf("%s: cannot read %v", path, answer)
		}
		cost, match := matrix(seed, answer[1], rows, columns), make([]int, rows)
		total, matched, err := a.Solve(cost, rows, columns, match)
		if err != nil {
			t.Fatalf("%v: %v", answer, err)
		}
		checkMatch(t, cost, rows, columns, match, total, matched)
		if answer[4] == "infeasible" {
			if matched >= min(rows, columns) {
				t.Errorf("%v: got a full match", answer)
			}
			continue
		}
		want, err := strconv.ParseFloat(answer[4], 64)
		if err != nil {
			t.Fatal(err)
		}
		if matched != min(rows, columns) || math.Abs(total-want) > 1e-9*want {
			t.Errorf("%v: got %d pairs at %v", answer, matched, total)
		}
	}
}

// BenchmarkAssignment reports the fastest call as min-ns; scripts/bench/assignment.sh
// holds it against SciPy's on the same matrices.
func BenchmarkAssignment(b *testing.B) {
	for _, size := range [][2]int{
		{5, 5}, {10, 10}, {20, 20}, {50, 50}, {100, 100}, {200, 200}, {500, 500}, {1000, 1000}, {
			20, 1000,
		},
	} {
		rows, columns := size[0], size[1]
		b.Run(fmt.Sprintf("%dx%d", rows, columns), func(b *testing.B) {
			cost, match := matrix(uint64(rows), "uniform", rows, columns), make([]int, rows)
			var a Solver
			calls := max(1, 2000/(rows*columns))
			best := time.Duration(math.MaxInt64)
			for b.Loop() {
				start := time.Now()
				for range calls {
					if _, _, err := a.Solve(cost, rows, columns, match); err != nil {
						b.Fatal(err)
					}
				}
				best = min(best, time.Since(start))
			}
			b.ReportMetric(float64(best)/float64(calls), "min-ns")
		})
	}
}
