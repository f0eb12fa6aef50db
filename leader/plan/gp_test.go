package plan

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"
)

func randomConfigurations(r *rand.Rand, n, types, most int) []Configuration {
	var all []Configuration
	seen := map[string]bool{}
	for len(all) < n {
		c := make(Configuration, types)
		for i := range c {
			c[i] = r.IntN(most + 1)
		}
		if !seen[c.String()] {
			seen[c.String()] = true
			all = append(all, c)
		}
	}
	return all
}

// TestGaussianProcess holds predictions against the textbook's formula, written down with full
// matrices.
func TestGaussianProcess(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, f := range []fit{{1e-6, false}, {1e-2, true}} {
		at := randomConfigurations(r, 25, 3, 9)
		y := make([]float64, len(at))
		for i, c := range at {
			y[i] = 3 + float64(c[0]) - math.Sqrt(float64(c[1]*c[2]))
		}
		g := newGaussianProcess(at, y, f)
		n := len(at)
		k := mat.NewDense(n, n, nil)
		z := mat.NewVecDense(n, nil)
		covariance := func(a, b Configuration) float64 {
			return g.amplitude * matern52(math.Sqrt(float64(squaredDistance(a, b)))/g.kernel.length)
		}
		for i := range at {
			for j := range at {
				k.Set(i, j, covariance(at[i], at[j]))
			}
			k.Set(i, i, g.amplitude*(1+f.nugget))
			z.SetVec(i, (y[i]-g.mean)/g.scale)
		}
		var inverse mat.Dense
		if err := inverse.Inverse(k); err != nil {
			t.Fatal(err)
		}
		test := append(randomConfigurations(r, 30, 3, 9), Configuration{40, 0, 0})
		mean, deviation := make([]float64, len(test)), make([]float64, len(test))
		g.predictAt(test, mean, deviation)
		for i, c := range test {
			row := mat.NewVecDense(n, nil)
			for j := range at {
				row.SetVec(j, covariance(c, at[j]))
			}
			var solved mat.VecDense
			solved.MulVec(&inverse, row)
			wantMean := g.mean + g.scale*mat.Dot(&solved, z)
			variance := g.scale * g.scale * (g.amplitude - mat.Dot(&solved, row))
			if math.Abs(mean[i]-wantMean) > 1e-6 ||
				math.Abs(deviation[i]*deviation[i]-variance) > 1e-6*(1+variance) {
				t.Errorf("%+v at %s: %v, %v, want %v, %v", f, c, mean[i], deviation[i], wantMean,
					math.Sqrt(max(0, variance)))
			}
		}
	}
}

// TestGaussianProcessInterpolates checks that what was observed is what is predicted there, and
// that doubt grows with the distance.
func TestGaussianProcessInterpolates(t *testing.T) {
	at := []Configuration{{0, 0}, {2, 0}, {0, 5}, {7, 1}}
	y := []float64{1, 4, 2, 8}
	g := newGaussianProcess(at, y, fit{nugget: 1e-6})
	mean, deviation := make([]float64, 4), make([]float64, 4)
	g.predictAt(at, mean, deviation)
	for i := range at {
		if math.Abs(mean[i]-y[i]) > 1e-3 || deviation[i] > 0.01 {
			t.Errorf("at %s: %v +- %v, observed %v", at[i], mean[i], deviation[i], y[i])
		}
	}
	g.predictAt([]Configuration{{7, 2}, {9, 9}}, mean, deviation)
	if !(deviation[0] < deviation[1]) {
		t.Errorf("near %v, far %v", deviation[0], deviation[1])
	}
}

// TestGaussianProcessDegenerate: one observation, and equal ones, predict themselves.
func TestGaussianProcessDegenerate(t *testing.T) {
	for _, y := range [][]float64{{5}, {5, 5, 5}} {
		for _, f := range []fit{{1e-6, false}, {1e-4, true}} {
			g := newGaussianProcess(randomConfigurations(rand.New(rand.NewPCG(3, 4)), len(y), 2, 9),
				y, f)
			mean, deviation := make([]float64, 1), make([]float64, 1)
			g.predictAt([]Configuration{{20, 20}}, mean, deviation)
			if math.Abs(mean[0]-5) > 1e-9 || math.IsNaN(deviation[0]) || deviation[0] < 0 {
				t.Errorf("%v, %+v: %v +- %v", y, f, mean[0], deviation[0])
			}
		}
	}
}

func TestExpectedImprovement(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, tt := range []struct{ mean, deviation, best float64 }{
		{0, 1, 0}, {1, 2, 3}, {-1, 0.5, 0}, {2, 1, 0},
	} {
		sum := 0.0
		const n = 200_000
		for range n {
			sum += max(0, tt.mean+tt.deviation*r.NormFloat64()-tt.best) / n
		}
		if got := expectedImprovement(tt.mean, tt.deviation, tt.best); math.Abs(got-sum) > 0.02 {
			t.Errorf("%+v: %v, sampled %v", tt, got, sum)
		}
	}
	if got := expectedImprovement(2, 0, 0.5); got != 1.5 {
		t.Errorf("certain: %v", got)
	}
}

// BenchmarkGaussianProcessStep is what a step of RIBBON costs: fitting what was observed and
// judging 2,000 candidates by both of its processes.
func BenchmarkGaussianProcessStep(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	at := randomConfigurations(r, 40, 3, 14)
	candidates := randomConfigurations(r, 2000, 3, 14)
	y := make([]float64, len(at))
	for i, c := range at {
		y[i] = float64(c[0]) + r.Float64()
	}
	mean, deviation := make([]float64, len(candidates)), make([]float64, len(candidates))
	for b.Loop() {
		for _, f := range []fit{objectiveFit, rateFit} {
			newGaussianProcess(at, y, f).predictAt(candidates, mean, deviation)
		}
	}
}
