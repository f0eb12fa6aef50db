package profiles

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// A fit is the model of latencies that a learner estimates from its evidence.
type fit struct {
	// The base is floor + slope * batch (ns), or slope times the prior profile.
	floor, slope float64
	deviation    [binCount]float64 // relative to the base
	doubt        [binCount]float64 // relative standard error of base and deviation together
	noise        [binCount]float64 // relative standard deviation of a query
	winsor       float64           // standard deviations
}

// Priors: the assumptions before there is evidence, and their weights. Noise, steps, spreads and
// limits are relative to the latency unless they say otherwise. All are chosen by the errors on the
// papers' samples that [Learner] states.
const (
	// The relative noise of a query, and how many queries that is worth.
	noisePrior, noisePriorQueries = 0.1, 2
	// How many queries the noise over all batch sizes is worth against what was seen near one.
	noisePooled        = 10
	noiseLeast         = 0.002
	noiseMost          = 2
	noiseReach         = 3 // bins to each side whose noise is taken as alike
	priorDoubt         = 0.5
	maxDoubt           = 1e6
	floorShare         = 0.3  // of latency, as likely as not between none and twice that
	lineMisfit         = 0.06 // how far from a line the truth is, as a standard deviation
	robustLimit        = 3.0  // standard deviations from which on a bin has less say in the line
	deviationStep      = 0.03 // standard deviation of the deviation from one bin to the next
	deviationSpread    = 0.1  // and by itself
	priorDeviationStep = 0.05 // the same where the base is a prior profile
	priorDeviation     = 0.15
)

// baseLatencyNs returns the latency, in ns, of a batch size by the line or by the prior.
func (f *fit) baseLatencyNs(prior *Table, batch float64) float64 {
	if prior != nil {
		return f.slope * prior.meanNs(int(batch+0.5))
	}
	return f.floor + f.slope*batch
}

// estimateFrom computes the fit from the learner's evidence.
func (f *fit) estimateFrom(l *Learner) {
	f.estimateNoise(l)
	f.winsor = min(max(l.shapeQuantile(winsorShare), 2.5), winsorLimit)
	if l.top < 0 && l.prior == nil {
		return
	}
	// Evidence as relative deviations from the base: value, and its variance without the
	// misfit of the base.
	var value, variance [binCount]float64
	var line [3]float64 // covariance of floor and slope: ff, fs, ss
	if l.prior != nil {
		f.floor = 0
		line[2] = f.fitFactor(l)
	} else {
		line = f.fitLine(l)
	}
	step, spread := deviationStep, deviationSpread
	if l.prior != nil {
		step, spread = priorDeviationStep, priorDeviation
	}
	for i := range l.top + 1 {
		b := &l.bins[i]
		if b.weight == 0 {
			continue
		}
		value[i] = b.latency/b.weight/f.baseLatencyNs(l.prior, b.batch/b.weight) - 1
		variance[i] = f.noise[i] * f.noise[i] / b.weight /
			huberWeight(value[i], f.noise[i]*f.noise[i]/b.weight+spread*spread)
	}
	f.smoothBins(&value, &variance, step, spread)
	for i := range f.doubt {
		lo, hi := binRange(i)
		x := float64(lo+hi) / 2
		base := f.baseLatencyNs(l.prior, x)
		relative := (line[0] + 2*x*line[1] + x*x*line[2]) / (base * base)
		if l.prior != nil {
			relative = line[2] / (f.slope * f.slope)
		}
		doubt := math.Sqrt(f.doubt[i]*f.doubt[i] + relative)
		if !(doubt <= maxDoubt) { // also if too little is known for a number
			doubt = maxDoubt
		}
		f.doubt[i] = doubt
	}
}

// estimateNoise sets the relative noise near each bin: that of the bin and its neighbours, shrunk
// towards the noise over all bins.
func (f *fit) estimateNoise(l *Learner) {
	weight, square := float64(noisePriorQueries), float64(noisePriorQueries*noisePrior*noisePrior)
	for i := range l.bins {
		weight += l.bins[i].weight
		square += l.bins[i].square
	}
	pooled := square / weight
	var w, s float64 // over the neighbourhood of i
	for i := range min(noiseReach, binCount) {
		w += l.bins[i].weight
		s += l.bins[i].square
	}
	for i := range f.noise {
		if in := i + noiseReach; in < binCount {
			w += l.bins[in].weight
			s += l.bins[in].square
		}
		if out := i - noiseReach - 1; out >= 0 {
			w -= l.bins[out].weight
			s -= l.bins[out].square
		}
		v := (max(s, 0) + noisePooled*pooled) / (max(w, 0) + noisePooled)
		f.noise[i] = min(max(math.Sqrt(v), noiseLeast), noiseMost)
	}
}

// huberWeight returns Huber's weight, in (0, 1], of a relative deviation with the given variance.
func huberWeight(deviation, variance float64) float64 {
	z := math.Abs(deviation) / math.Sqrt(variance)
	return min(1, robustLimit/z)
}

// fitLine estimates floor and slope, neither negative, from the means of the bins, and returns
// their covariance. It minimises relative errors; large ones have less weight than their square.
// The prior floor is floorShare of the mean latency.
func (f *fit) fitLine(l *Learner) (covariance [3]float64) {
	var weight, latency float64
	for i := range l.top + 1 {
		weight += l.bins[i].weight
		latency += l.bins[i].latency
	}
	guess := latency / weight * floorShare
	for round := range 5 {
		// Normal equations for floor (f) and slope (s), with the prior on the floor.
		ff, fs, ss := 1/(guess*guess), 0.0, 0.0
		rf, rs := guess/(guess*guess), 0.0
		// the same without the misfit, which is the deviation's affair
		certain := [3]float64{ff, fs, ss}
		for i := range l.top + 1 {
			b := &l.bins[i]
			if b.weight == 0 {
				continue
			}
			x, y := b.batch/b.weight, b.latency/b.weight
			noise := f.noise[i] * f.noise[i] / b.weight
			v := noise + lineMisfit*lineMisfit
			at, say := y, 1.0 // at first relative to what was seen, which favours the small
			if round > 0 {
				at = f.floor + f.slope*x
				say = huberWeight(y/at-1, v)
			}
			p := say / (v * at * at)
			ff += p
			fs += p * x
			ss += p * x * x
			rf += p * y
			rs += p * x * y
			certain[0] += p * v / noise
			certain[1] += p * v / noise * x
			certain[2] += p * v / noise * x * x
		}
		determinant := ff*ss - fs*fs
		f.floor, f.slope = (rf*ss-rs*fs)/determinant, (rs*ff-rf*fs)/determinant
		switch {
		case !(f.floor > 0):
			f.floor, f.slope = 0, rs/ss
		case !(f.slope > 0):
			f.floor, f.slope = rf/ff, 0
		}
		determinant = certain[0]*certain[2] - certain[1]*certain[1]
		covariance = [3]float64{
			certain[2] / determinant, -certain[1] / determinant, certain[0] / determinant,
		}
	}
	return covariance
}

// fitFactor estimates the factor of the prior profile, and returns its variance.
func (f *fit) fitFactor(l *Learner) (variance float64) {
	f.slope = 1
	for range 5 {
		p, r := 1/(priorDoubt*priorDoubt), 1/(priorDoubt*priorDoubt)
		for i := range l.top + 1 {
			b := &l.bins[i]
			if b.weight == 0 {
				continue
			}
			ratio := b.latency / b.weight / l.prior.meanNs(int(b.batch/b.weight+0.5))
			v := f.noise[i]*f.noise[i]/b.weight + priorDeviation*priorDeviation
			say := huberWeight(ratio/f.slope-1, v) / (v * f.slope * f.slope)
			p += say
			r += say * ratio
		}
		f.slope, variance = r/p, 1/p
	}
	return variance
}

// smoothBins sets each bin's deviation to its most likely value and doubt to the standard
// error of that, given the evidence (a variance of 0 means none). The deviations are
// modelled as a random walk over the bins with the given standard deviation of a step,
// pulled towards zero so that it stays within about spread. This is a Gaussian Markov
// random field with a tridiagonal precision matrix.
func (f *fit) smoothBins(value, variance *[binCount]float64, step, spread float64) {
	const n = binCount
	tie := 1 / (step * step)
	pull := math.Pow(step/(2*spread*spread), 2)
	var diagonal, right, forward [n]float64
	for i := range n {
		diagonal[i] = pull + 2*tie
		if i == 0 || i == n-1 {
			diagonal[i] -= tie
		}
		if variance[i] > 0 {
			diagonal[i] += 1 / variance[i]
			right[i] = value[i] / variance[i]
		}
	}
	forward[0] = diagonal[0]
	for i := 1; i < n; i++ {
		forward[i] = diagonal[i] - tie*tie/forward[i-1]
		right[i] += right[i-1] * tie / forward[i-1]
	}
	// the same elimination from the other end; together they give the inverse's diagonal
	backward := 0.0
	next := 0.0
	for i := n - 1; i >= 0; i-- {
		if i < n-1 {
			backward = diagonal[i] - tie*tie/backward
		} else {
			backward = diagonal[i]
		}
		next = (right[i] + tie*next) / forward[i]
		f.deviation[i] = max(next, -0.9)
		f.doubt[i] = 1 / math.Sqrt(forward[i]+backward-diagonal[i])
	}
}

// shapeQuantile returns the quantile p of the standardised noise.
func (l *Learner) shapeQuantile(p float64) float64 {
	var total float64
	for _, w := range l.shape {
		total += w
	}
	left := p * total
	for i, w := range l.shape {
		if left <= w {
			return shapeLow + shapeStep*(float64(i)+left/w)
		}
		left -= w
	}
	return shapeLow + shapeStep*shapeCount
}

// makeTable returns the learner's profile as a table. It has one knot for each bin, up to the
// highest bin with evidence or in the prior, and one more far beyond, by the base. It is nil
// without evidence and prior.
func (f *fit) makeTable(l *Learner) *Table {
	top := l.top
	if l.prior != nil {
		top = max(top, binOf(l.prior.knots[len(l.prior.knots)-1].BatchSize))
	}
	if top < 0 {
		return nil
	}
	knots := make([]Knot, 0, top+2)
	means, weights := make([]float64, 0, top+2), make([]float64, 0, top+2)
	add := func(batch, i int) {
		mean := f.baseLatencyNs(l.prior, float64(batch)) * (1 + f.deviation[i])
		means = append(means, mean)
		weights = append(weights, 1/math.Pow(mean*f.doubt[i], 2))
		knots = append(knots, Knot{BatchSize: batch, Error: f.doubt[i]})
	}
	for i := range top + 1 {
		lo, hi := binRange(i)
		add((lo+hi)/2, i)
	}
	if last := knots[len(knots)-1].BatchSize; last < MaxBatchSize/4 {
		add(4*last, top)
	}
	Ascend(means, weights)
	z50, z90, z99 := l.shapeQuantile(0.5), l.shapeQuantile(0.9), l.shapeQuantile(0.99)
	long, excess := l.tail.estimateQuantile(0.99)
	if l.tail.queries < tailKnown {
		long = max(long, l.inherited)
	}
	for i := range knots {
		k, noise := &knots[i], f.noise[min(i, top)]
		at := func(z float64, least time.Duration) time.Duration {
			return max(saturateDuration(means[i]*max(1+z*noise, 0.1)), least)
		}
		k.Mean = max(saturateDuration(means[i]), 1)
		k.P50 = at(z50, 1)
		k.P90 = at(z90, k.P50)
		k.P99 = at(z99, k.P90)
		// Shape has nothing beyond this limit, and is finer up to it.
		if long > (1+f.winsor*noise)*tailRatio(1) {
			k.P99 = max(k.P99, saturateDuration(means[i]*long))
		}
		k.Load = saturateDuration(float64(k.Mean) * (1 + excess))
	}
	origin, source := Learned, fmt.Sprintf("%d queries", l.observed)
	if l.observed == 0 { // there is a prior
		origin, source = Inherited, l.prior.source
	}
	table, err := NewTable(l.key, origin, source, knots)
	if err != nil {
		panic(fmt.Sprintf("profiles: a learner made a bad table: %v", err))
	}
	return table
}

// Ascend changes values in place so that they never fall, with the least weighted sum of squared
// changes: it pools adjacent values that fall (isotonic regression). Without weights all count
// alike.
func Ascend(values, weights []float64) {
	if slices.IsSorted(values) {
		return
	}
	type pool struct {
		value, weight float64
		count         int
	}
	pools := make([]pool, 0, len(values))
	for i, v := range values {
		p := pool{v, 1, 1}
		if weights != nil {
			p.weight = weights[i]
		}
		for len(pools) > 0 && pools[len(pools)-1].value > p.value {
			q := pools[len(pools)-1]
			pools = pools[:len(pools)-1]
			w := p.weight + q.weight
			p = pool{(p.value*p.weight + q.value*q.weight) / w, w, p.count + q.count}
		}
		pools = append(pools, p)
	}
	i := 0
	for _, p := range pools {
		for range p.count {
			values[i] = p.value
			i++
		}
	}
}
