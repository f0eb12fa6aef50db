package plan

import (
	"math"
	"slices"
	"sync"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/mat"
)

// A gaussianProcess is what a few evaluations say of all configurations: by a Matern 5/2 kernel on
// counts, which are integers, so that RIBBON's rounding (its Eq. 3) is done already; with one
// length scale, that of the highest marginal likelihood; of outputs that are standardised.
type gaussianProcess struct {
	at          []Configuration
	mean, scale float64 // of the outputs
	amplitude   float64 // variance of the standardised process
	lower       mat.TriDense
	weights     *mat.VecDense // K^-1 y
	kernel      *kernel
}

// A fit says how a gaussianProcess is fitted.
type fit struct {
	// nugget is the variance of noise, as a share of that of the outputs.
	nugget float64
	// amplitude says to fit that too; otherwise it is that of the outputs.
	amplitude bool
}

// Length scales are tried from shortest, in steps of a fourth root of two. Beyond the last, 32
// instances, all configurations are much alike.
const (
	shortest    = 0.25
	lengthSteps = 29
)

// newGaussianProcess fits outputs y at configurations, one at least.
func newGaussianProcess(at []Configuration, y []float64, f fit) *gaussianProcess {
	n := len(at)
	g := &gaussianProcess{at: at}
	for _, v := range y {
		g.mean += v / float64(n)
	}
	z := mat.NewVecDense(n, nil)
	for i, v := range y {
		z.SetVec(i, v-g.mean)
	}
	if g.scale = mat.Norm(z, 2) / math.Sqrt(float64(n)); g.scale == 0 {
		g.scale = 1
	}
	z.ScaleVec(1/g.scale, z)
	likeliest := math.Inf(-1)
	for _, kernel := range kernels() {
		c, weights := condition(at, z, kernel, f.nugget)
		if c == nil {
			continue
		}
		amplitude, quadratic := 1.0, mat.Dot(z, weights)
		if f.amplitude {
			amplitude = max(quadratic/float64(n), 1e-12)
		}
		likelihood := -quadratic/amplitude/2 - c.LogDet()/2 - float64(n)*math.Log(amplitude)/2
		if likelihood > likeliest {
			likeliest = likelihood
			g.amplitude, g.kernel, g.weights = amplitude, kernel, weights
			c.LTo(&g.lower)
		}
	}
	return g
}

// newPrior is a process of which mean 0, standard deviation and length scale are known beforehand,
// because there are too few outputs to fit them to.
func newPrior(at []Configuration, y []float64, deviation float64, kernel *kernel,
	nugget float64) *gaussianProcess {
	g := &gaussianProcess{at: at, scale: deviation, amplitude: 1, kernel: kernel}
	z := mat.NewVecDense(len(y), slices.Clone(y))
	z.ScaleVec(1/deviation, z)
	c, weights := condition(at, z, kernel, nugget)
	g.weights = weights
	c.LTo(&g.lower)
	return g
}

// condition solves for outputs z of variance 1; nil where that is numerically singular, so alike
// are neighbours under so long a scale.
func condition(at []Configuration, z *mat.VecDense, kernel *kernel, nugget float64) (*mat.Cholesky,
	*mat.VecDense) {
	k := mat.NewSymDense(len(at), nil)
	for i := range at {
		for j := range i {
			k.SetSym(i, j, kernel.at(distance2(at[i], at[j])))
		}
		k.SetSym(i, i, 1+nugget)
	}
	c, weights := &mat.Cholesky{}, &mat.VecDense{}
	if !c.Factorize(k) || c.SolveVecTo(weights, z) != nil {
		return nil, nil
	}
	return c, weights
}

// predictBlock bounds the memory that predict needs.
const predictBlock = 1024

// predict writes the mean and standard deviation of the process at each configuration.
func (g *gaussianProcess) predict(at []Configuration, mean, deviation []float64) {
	n := len(g.at)
	block := make([]float64, n*min(len(at), predictBlock))
	for len(at) > 0 {
		m := min(len(at), predictBlock)
		k := blas64.General{Rows: n, Cols: m, Stride: m, Data: block[:n*m]}
		clear(mean[:m])
		for i, x := range g.at {
			w, row := g.weights.AtVec(i), k.Data[i*m:(i+1)*m]
			for j, c := range at[:m] {
				v := g.kernel.at(distance2(x, c))
				row[j] = v
				mean[j] += w * v
			}
		}
		blas64.Trsm(blas.Left, blas.NoTrans, 1, g.lower.RawTriangular(), k)
		for j := range m {
			deviation[j] = 1
		}
		for i := range n {
			for j, v := range k.Data[i*m : (i+1)*m] {
				deviation[j] -= v * v
			}
		}
		for j := range m {
			mean[j] = g.mean + g.scale*mean[j]
			deviation[j] = g.scale * math.Sqrt(g.amplitude*max(deviation[j], 1e-12))
		}
		at, mean, deviation = at[m:], mean[m:], deviation[m:]
	}
}

// distance2 is the square of the distance of two configurations in instances.
func distance2(a, b Configuration) int {
	sum := 0
	for i, n := range a {
		d := n - b[i]
		sum += d * d
	}
	return sum
}

// A kernel is the Matern 5/2 kernel of one length scale, looked up by the squared distance: between
// integer points there are few.
type kernel struct {
	length float64 // in instances
	near   []float64
}

// kernels are those of the lengths that are tried.
var kernels = sync.OnceValue(func() []*kernel {
	all := make([]*kernel, lengthSteps)
	for step := range all {
		k := &kernel{
			length: shortest * math.Pow(2, float64(step)/4), near: make([]float64, nearDistances),
		}
		for d2 := range k.near {
			k.near[d2] = matern52(math.Sqrt(float64(d2)) / k.length)
		}
		all[step] = k
	}
	return all
})

// nearDistances is how many squared distances are looked up: those of up to 22 instances.
const nearDistances = 512

func (k *kernel) at(d2 int) float64 {
	if d2 < len(k.near) {
		return k.near[d2]
	}
	return matern52(math.Sqrt(float64(d2)) / k.length)
}

func matern52(r float64) float64 {
	r *= math.Sqrt(5)
	return (1 + r + r*r/3) * math.Exp(-r)
}

// expectedImprovement is by how much a normal variable exceeds best in the mean, where it does.
func expectedImprovement(mean, deviation, best float64) float64 {
	if deviation == 0 {
		return max(0, mean-best)
	}
	z := (mean - best) / deviation
	return (mean-best)*above(-z) + deviation*math.Exp(-z*z/2)/math.Sqrt(2*math.Pi)
}

// above is the probability that a standard normal variable exceeds z.
func above(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 }
