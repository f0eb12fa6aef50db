package work

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// generate draws runs that take a ms, and b, c and d us a row, a user and a value, with 5 % noise.
func generate(seed uint64, n int, a, b, c, d float64) (runs []Run) {
	r := rand.New(rand.NewPCG(seed, 0))
	for range n {
		run := Run{Rows: 1 + r.IntN(500), Users: 1 + r.IntN(20), Values: r.IntN(3000)}
		us := 1e3*a + b*float64(run.Rows) + c*float64(run.Users) + d*float64(run.Values)
		run.Took = time.Duration(1e3 * us * math.Exp(0.05*r.NormFloat64()))
		runs = append(runs, run)
	}
	return runs
}

func TestLearnsTheTruth(t *testing.T) {
	for _, tt := range []struct{ a, b, c, d float64 }{
		{1, 10, 200, 2}, {0.1, 5, 0, 5}, {2, 40, 1000, 0},
	} {
		fit := Learn(generate(1, 2000, tt.a, tt.b, tt.c, tt.d))
		user, value := tt.c/tt.b, tt.d/tt.b
		if math.Abs(fit.Law.PerUser-user) > 0.05*user+0.2 ||
			math.Abs(fit.Law.PerValue-value) > 0.05*value+0.01 {
			t.Errorf("%v: got %+v, want %v rows a user, %v a value", tt, fit.Law, user, value)
		}
		// Noise of 5 % has a mean of 4 %.
		if !fit.IsBetter || fit.WorkError > 0.05 || fit.RowsError < 2*fit.WorkError {
			t.Errorf("%v: got %+v, want work to be better, with an error of 4 %%", tt, fit)
		}
	}
}

// Where users and values do not count, work is no better, whatever the noise makes of them.
func TestRowsAlone(t *testing.T) {
	for seed := range uint64(20) {
		if fit := Learn(generate(seed, 500, 1, 10, 0, 0)); fit.IsBetter {
			t.Errorf("seed %d: got %+v, want rows alone", seed, fit)
		}
	}
	// Nor where they say no more than the rows, or nothing.
	var same, none []Run
	for _, r := range generate(1, 500, 1, 10, 0, 0) {
		none = append(none, Run{Rows: r.Rows, Took: r.Took})
		same = append(same, Run{Rows: r.Rows, Users: 1, Values: 7 * r.Rows, Took: r.Took})
	}
	for name, runs := range map[string][]Run{"none": none, "same": same, "few": same[:49]} {
		if fit := Learn(runs); fit.IsBetter || fit.Law != (Law{}) || fit.RowsError != fit.WorkError {
			t.Errorf("%s: got %+v, want the zero law", name, fit)
		}
	}
}

func TestSize(t *testing.T) {
	for rows := range 5000 {
		if got := (Law{}).Size(rows, 3, 99); got != max(rows, 1) {
			t.Fatalf("rows alone: %d rows have size %d", rows, got)
		}
	}
	for want, q := range map[int]Run{
		15: {Rows: 10, Users: 2, Values: 0}, 16: {Rows: 10, Users: 2, Values: 1},
		13: {Rows: 10, Users: 0, Values: 10}, 1: {},
	} {
		if got := (Law{PerUser: 2.5, PerValue: 0.3}).Size(q.Rows, q.Users, q.Values); got != want {
			t.Errorf("%+v: size %d, want %d", q, got, want)
		}
	}
}
