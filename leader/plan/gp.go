package plan

import (
	"math"
	"slices"
	"sync"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/mat"
)

// A gaussianProcess predicts all configurations from a few evaluations. Its kernel is Matern 5/2 on
// the counts; these are integers, so RIBBON's rounding (its Eq. 3) changes nothing. It has one
// length scale, that of the highest marginal likelihood. Outputs are standardised.
type gaussianProcess struct {
	at          []Configuration
	mean, scale float64 // mean and standard deviation of the outputs
	amplitude   float64 // the variance of the standardised process
	lower       mat.TriDense
	weights     *mat.VecDense // K^-1 y
	kernel      *kernel
}

// A fit says how a gaussianProcess is fitted.
type fit struct {
	// nugget is the variance of the noise, as a share of the outputs' variance.
	nugget float64
	// amplitude says to fit the process's variance too; otherwise it is the outputs' variance.
	amplitude bool
}

// Length scales, in instances, are tried from shortest up, each 2^(1/4) times the one before.
// Beyond the last, 32 instances, the kernel hardly distinguishes configurations. Chosen: below
// a quarter of an instance, neighbours say nothing of each other.
const (
	shortest    = 0.25
	lengthSteps = 29
)

// newGaussianProcess fits a process to the outputs y at the given configurations, at least one.
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

// newPrior returns a process with mean 0 and the given standard deviation and kernel, for outputs
// too few to fit these to.
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

// condition solves for outputs z of variance 1. It returns nil if the matrix is numerically
// singular, which happens when the length scale is so long that neighbours are almost equal.
func condition(at []Configuration, z *mat.VecDense, kernel *kernel, nugget float64) (*mat.Cholesky,
	*mat.VecDense) {
	k := mat.NewSymDense(len(at), nil)
	for i := range at {
		for j := range i {
			k.SetSym(i, j, kernel.covarianceAt(squaredDistance(at[i], at[j])))
		}
		k.SetSym(i, i, 1+nugget)
	}
	c, weights := &mat.Cholesky{}, &mat.VecDense{}
	if !c.Factorize(k) || c.SolveVecTo(weights, z) != nil {
		return nil, nil
	}
	return c, weights
}

// predictBlock is how many configurations predict handles at a time; it bounds predict's memory.
// Chosen: a block's row for each observation fits into a core's cache.
const predictBlock = 1024

// predictAt writes the mean and standard deviation of the process at each configuration.
func (g *gaussianProcess) predictAt(at []Configuration, mean, deviation []float64) {
	n := len(g.at)
	block := make([]float64, n*min(len(at), predictBlock))
	for len(at) > 0 {
		m := min(len(at), predictBlock)
		k := blas64.General{Rows: n, Cols: m, Stride: m, Data: block[:n*m]}
		clear(mean[:m])
		for i, x := range g.at {
			w, row := g.weights.AtVec(i), k.Data[i*m:(i+1)*m]
			for j, c := range at[:m] {
				v := g.kernel.covarianceAt(squaredDistance(x, c))
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

// squaredDistance is the squared Euclidean distance of two configurations, in instances.
func squaredDistance(a, b Configuration) int {
	sum := 0
	for i, n := range a {
		d := n - b[i]
		sum += d * d
	}
	return sum
}

// A kernel is the Matern 5/2 kernel of one length scale, tabulated by the squared distance, of
// which integer points have few.
type kernel struct {
	length float64 // in instances
	near   []float64
}

// kernels are the kernels of the length scales that are tried.
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

// nearDistances is how many squared distances a kernel tabulates: up to a distance of 22 instances.
const nearDistances = 512

func (k *kernel) covarianceAt(d2 int) float64 {
	if d2 < len(k.near) {
		return k.near[d2]
	}
	return matern52(math.Sqrt(float64(d2)) / k.length)
}

func matern52(r float64) float64 {
	r *= math.Sqrt(5)
	return (1 + r + r*r/3) * math.Exp(-r)
}

// expectedImprovement is the mean of max(0, X - best) of a normal variable X.
func expectedImprovement(mean, deviation, best float64) float64 {
	if deviation == 0 {
		return max(0, mean-best)
	}
	z := (mean - best) / deviation
	return (mean-best)*normalTail(-z) + deviation*math.Exp(-z*z/2)/math.Sqrt(2*math.Pi)
}

// normalTail is the probability that a standard normal variable exceeds z.
func normalTail(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 }
