package profiles

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Learner learns the latency profile of one key from the queries served under it.
//
// Its model of a query of batch size b on agent a is
//
//	latency = base(b) * (1 + deviation(b)) * factor(a) * size(a, b) * (1 + noise(b) * z)
//
// base is a line, floor + slope * b. If the learner was given a profile to start from, base is that
// profile times a factor. Two or three queries determine a base, and about thirty a good one,
// because latency is nearly linear. deviation is a smooth function over bins of the batch size,
// which turns the line into a table: it is zero in bins without evidence and approaches the bin's
// own mean as evidence grows. The mean of factor over the agents is one. size is by how much more
// the agent departs from its type at sizes like b than at others, as a machine does whose memory is
// slow, or whose clock falls in long runs; it is one without evidence. noise is the relative
// standard deviation near b. z is standardised noise; its distribution, the same at all batch
// sizes, gives the quantiles.
//
// Observations are winsorised: one above the 99.5 % quantile that the model predicts, or above 4
// standard deviations if that is less, enters the mean as this limit. So the mean is that of usual
// queries, by which a scheduler knows when one of them ends. What is beyond the limit is kept in a
// tail, the same at all batch sizes, from which come the 99 % quantile, where that is beyond the
// limit, and the load ([Table.Load]), which is the plain mean. In both the one longest query counts
// as a usual one. A query that was cut off counts by how long it has run, see ObserveCut.
//
// Each bin forgets exponentially and remembers about its last 500 queries. The learner recognises
// a lasting change by a two-sided cumulative sum of the standardised residuals of each agent. It
// then adopts the change at once: the agent's factor jumps, or the whole profile if there is only
// one agent, and older evidence keeps a tenth of its weight.
//
// Accuracy on the papers' samples (five models on four instance types, batch sizes from the
// production trace, error against the mean of the samples at each of 100 batch sizes): the median
// error is 0.1 to 3.0 % after 30 queries and 0.03 to 1.1 % after 2,000. On t3.xlarge, whose
// latencies vary by 22 %, it is up to 7.8 and 3.3 %, of which 1.5 % is the error of the samples'
// means. If one sample in a hundred is ten times too large, the profile moves by 1.8 % at most. A
// slowdown by 1.5 is recognised after 7 queries, on t3.xlarge after up to 32.
//
// A Learner is not safe for concurrent use. The same calls, those of Table included, give the same
// values. Observe allocates only when it sees a new agent.
type Learner struct {
	key    Key
	prior  *Table // nil: the base is a line
	bins   [binCount]bin
	top    int // the highest bin with evidence; -1 before the first query
	agents []agent
	shape  [shapeCount]float64 // weights of z by value
	tail   tail
	// inherited is the 99 % quantile of the profile that the learner started from, divided by its
	// mean; 0 if there is none. It counts until the tail knows more.
	inherited float64
	early     [earlyQueries]earlyObservation
	kept      int // queries in early
	observed  uint64
	changes   int
	updated   time.Time

	fit        fit
	sinceRefit int
	table      *Table // made from fit; nil until Table makes it
}

// A bin holds the evidence of a narrow range of batch sizes, as weighted sums over its queries.
type bin struct {
	weight  float64 // number of queries; older ones have less weight
	batch   float64 // batch size
	latency float64 // ns, winsorised and divided by the agent's factor
	square  float64 // squared relative residual, winsorised
}

func (b *bin) scaleWeight(f float64) {
	b.weight *= f
	b.batch *= f
	b.latency *= f
	b.square *= f
}

// An agent is a machine of the key's type.
type agent struct {
	name     names.AgentName
	factor   float64
	variance float64 // of factor
	queries  float64 // number of queries; older ones have less weight
	rise     cusum
	fall     cusum
	seen     time.Time
	sizes    [sizeClasses]sizeFactor
	// pending are outliers that are not in the tail yet: if they turn out to be the first queries
	// after a lasting change, they are none.
	pending [tailPending]outlier
	pends   int8
}

// A sizeFactor is an agent's size(a, b) for batch sizes of one class.
type sizeFactor struct {
	log      float32
	variance float32 // of log
	queries  float32 // number of queries; older ones have less weight
}

// An outlier is an argument of [tail.add].
type outlier struct {
	ratio, counted float32
	cut            bool
}

// A cusum is a cumulative sum (CUSUM) since it was last zero.
type cusum struct {
	sum     float64
	queries float64
	ratio   float64 // sum of log(latency / predicted)
}

const (
	// Bins: single batch sizes up to fineBins, then 8 to the octave. Chosen, as the memories below,
	// by the errors on the papers' samples that [Learner] states.
	fineBins = 16
	binCount = fineBins + 8*12 // up to MaxBatchSize

	binMemory   = 500  // queries a bin remembers
	shapeMemory = 4000 // queries the distribution of z remembers
	agentMemory = 500  // queries the factor of an agent remembers
	// An agent without queries for agentLife is forgotten; the mean of the factors then excludes
	// it. Chosen: longer than a restart with a load of models takes, so that an agent that comes
	// back keeps its factor.
	agentLife = 10 * time.Minute

	// The first earlyQueries queries are kept unchanged, because only later ones show which of them
	// are outliers. A query less than earlyLimit, as a share, from the line is no outlier. Chosen:
	// of 16 queries one outlier does not move the line by its limit; machines vary by up to .22 of
	// a latency.
	earlyQueries = 16
	earlyLimit   = 0.25

	winsorLimit = 4.0 // standard deviations
	winsorShare = 0.995

	// A change is recognised by the cumulative sum of Page (CUSUM; Biometrika 41, 1954), for rises
	// and for falls. Each residual, in standard deviations, is limited to changeClip, reduced by
	// changeSlack and added to the sum. At changeLimit the change is adopted: eight extreme queries
	// in a row suffice, single ones never do. Chosen: a slowdown by 1.5 is then recognised after 7
	// queries, on the noisiest type after up to 32.
	changeClip  = 4.0
	changeSlack = 0.5
	changeLimit = 24.0
	// The weight that evidence from before a change keeps. Chosen: a tenth is outweighed by a few
	// queries, and still gives a shape to sizes that have none of these.
	changeDoubt = 0.1
	// A bin with less evidence than this, in queries, loses no more. After 300 changes it would
	// have none of which a mean could be told.
	minEvidence = 1e-6
	// The logarithm of the largest factor that is adopted at once, 4.
	changeJump = 2 * math.Ln2

	agentSpread = 0.1 // standard deviation of the agents' factors, before evidence
	// sizeSpread is the same of what the factor for a class of batch sizes differs from the
	// agent's. Chosen: half of it, since most agents that are slow are so at all sizes.
	sizeSpread = agentSpread / 2
	// sizeMemory is how many queries the factor for a class of an agent remembers: so few that the
	// agents come apart soon where their type's profile begins as the mean of both.
	sizeMemory = 50
	// Classes of batch sizes, of two octaves each: what slows down large batches alone (caches,
	// memory bandwidth, clocks) begins at some size and holds beyond it.
	classBins   = 16
	sizeClasses = 1 + (binCount-fineBins)/classBins

	// z is counted in intervals of 1/4 from shapeLow on; the first and the last are open.
	shapeLow, shapeStep = -5.0, 0.25
	shapeCount          = 60
	shapePrior          = 30 // weight, in queries, of the normal distribution as the prior
)

// NewLearner returns a learner for key without evidence. If prior is not nil, it starts from that
// profile, with doubt: for instance the profile of an earlier version, of another number of cores,
// or a shipped one.
func NewLearner(key Key, prior *Table) *Learner {
	l := &Learner{key: key, top: -1}
	if prior != nil {
		l.prior = prior.As(key)
		l.Inherit(prior)
	}
	for i := range l.shape {
		low := shapeLow + float64(i)*shapeStep
		p := normalShare(low+shapeStep) - normalShare(low)
		l.shape[i] = shapePrior * p
	}
	l.refitModel()
	return l
}

// Inherit takes from a profile how long the longest queries take, beside the mean, until queries
// have shown it.
func (l *Learner) Inherit(from *Table) {
	k := from.knots[len(from.knots)/2]
	l.inherited = float64(k.P99) / float64(k.Mean)
	l.table = nil
}

func normalShare(z float64) float64 { return 0.5 * math.Erfc(-z/math.Sqrt2) }

// binOf returns the bin of a batch size within 1..MaxBatchSize.
func binOf(batch int) int {
	if batch <= fineBins {
		return batch - 1
	}
	octave := bits.Len(uint(batch-1)) - 5 // 0 is 17..32
	return fineBins + 8*octave + (batch-1-fineBins<<octave)>>(octave+1)
}

// binRange returns the smallest and the largest batch size of a bin.
func binRange(i int) (lo, hi int) {
	if i < fineBins {
		return i + 1, i + 1
	}
	octave, part := (i-fineBins)/8, (i-fineBins)%8
	lo = fineBins<<octave + part<<(octave+1) + 1
	return lo, lo + 1<<(octave+1) - 1
}

// classOf returns the class of batch sizes that a bin is in.
func classOf(i int) int { return max(0, i-fineBins+classBins) / classBins }

// Key returns the key of the profile.
func (l *Learner) Key() Key { return l.key }

// changeKey changes the learner's key and keeps the evidence.
func (l *Learner) changeKey(key Key) {
	l.key, l.table = key, nil
	if l.prior != nil {
		prior := *l.prior
		prior.key = key
		l.prior = &prior
	}
}

// Queries returns how many queries were observed.
func (l *Learner) Queries() uint64 { return l.observed }

// Changes returns how many lasting changes were recognised.
func (l *Learner) Changes() int { return l.changes }

// Updated returns the time of the latest observation.
func (l *Learner) Updated() time.Time { return l.updated }

// Observe adds the evidence of one query: its batch size, its execution latency, and the agent on
// which it ran and ended at now. A batch size outside 1..MaxBatchSize or a latency outside 1 ns to
// 24 h is an error and leaves the learner as it was.
func (l *Learner) Observe(batch int, latency time.Duration, agentName names.AgentName,
	now time.Time) error {
	return l.observeExecution(batch, latency, agentName, now, false)
}

// ObserveCut is Observe for a query that was cut off after it had run for so long: it takes at
// least that. If that is beyond the limit of what enters the mean, the query enters it as one that
// ended, for which the limit counts too, and can be a sign of a lasting change; otherwise it says
// nothing of the mean.
func (l *Learner) ObserveCut(batch int, ran time.Duration, agentName names.AgentName,
	now time.Time) error {
	return l.observeExecution(batch, ran, agentName, now, true)
}

func (l *Learner) observeExecution(batch int, latency time.Duration, agentName names.AgentName,
	now time.Time, cut bool) error {
	if batch < 1 || batch > MaxBatchSize {
		return fmt.Errorf("observe %s: batch size %d is not within 1..%d", l.key, batch,
			MaxBatchSize)
	}
	if latency < 1 || latency > maxLatency {
		return fmt.Errorf("observe %s: latency %v is not positive and at most %v", l.key, latency,
			maxLatency)
	}
	isEarly := l.prior == nil && l.observed == uint64(l.kept) && l.kept < earlyQueries
	if cut && isEarly {
		return nil // nothing says yet how long queries take
	}
	i := binOf(batch)
	a := l.agentOf(agentName)
	size := &a.sizes[classOf(i)]
	value := float64(latency) / (a.factor * math.Exp(float64(size.log)))
	if isEarly {
		a.seen, l.updated = now, now
		l.observed++
		l.early[l.kept] = earlyObservation{batch, value}
		l.kept++
		a.queries++
		l.startOver()
		return nil
	}
	predicted := l.fit.baseLatencyNs(l.prior, float64(batch)) * (1 + l.fit.deviation[i])
	noise, doubt := l.fit.noise[i], l.fit.doubt[i]
	spread := math.Sqrt(noise*noise + doubt*doubt + a.variance + float64(size.variance))
	ratio := value / predicted
	if cut && (ratio-1)/spread < l.fit.winsor {
		l.tail.add(ratio, ratio, true)
		return nil
	}
	a.seen, l.updated = now, now
	l.observed++
	if l.watch(a, math.Log(ratio), spread) {
		return nil
	}
	z := min(max((ratio-1)/spread, -winsorLimit), l.fit.winsor)
	residual := max(z*spread, -0.99)
	l.observeTail(a, outlier{float32(ratio), float32(1 + residual), cut})
	if doubt < noise {
		l.observeShape(z * spread / noise)
	}
	a.queries += 1 - a.queries/agentMemory
	// A Kalman filter whose gain never falls below about 1 / agentMemory. With one agent, whose
	// factor is one at every refit, it moves the whole profile.
	a.variance += noise * noise / (agentMemory * agentMemory)
	gain := a.variance / (a.variance + noise*noise + doubt*doubt)
	a.factor *= 1 + gain*residual
	a.variance *= 1 - gain
	if len(l.agents) > 1 { // else deviation says all
		size.observeResidual(residual*(1-gain), noise*noise+doubt*doubt)
	}
	// The squared residual includes doubt and the factor's variance; only its noise part is added.
	l.add(i, batch, predicted*(1+residual), residual*residual*noise*noise/(spread*spread))
	if l.sinceRefit++; l.sinceRefit >= 64 || uint64(l.sinceRefit)*16 >= l.observed {
		l.refitModel()
	}
	return nil
}

// An earlyObservation is one of the first runs, kept as it was observed.
type earlyObservation struct {
	batch   int
	latency float64 // ns
}

// startOver fills the bins from the early queries. It winsorises those far from the line near most
// of them, even the very first one: a cold machine makes that slow.
func (l *Learner) startOver() {
	early := l.early[:l.kept]
	floor, slope := medianLine(early)
	line := func(q earlyObservation) float64 { return floor + slope*float64(q.batch) }
	var sizes [earlyQueries]float64
	for i, q := range early {
		sizes[i] = math.Abs(q.latency/line(q) - 1)
	}
	slices.Sort(sizes[:len(early)])
	limit := winsorLimit * 1.5 * sizes[(len(early)-1)/2] // 1.5 medians are a standard deviation
	limit = min(max(limit, earlyLimit), winsorLimit)
	l.bins, l.tail = [binCount]bin{}, tail{}
	for _, q := range early {
		residual := min(max(q.latency/line(q)-1, -limit), limit)
		l.tail.add(q.latency/line(q), 1+residual, false)
		l.add(binOf(q.batch), q.batch, line(q)*max(1+residual, 0.1), residual*residual)
	}
	l.refitModel()
}

// medianLine returns the line, with floor and slope of at least 0, that is nearest to most queries.
// It tries the lines through two of them, and those through one with the usual share of floor, and
// chooses the one with the least sum of |latency - line| / max(latency, line).
func medianLine(queries []earlyObservation) (floor, slope float64) {
	least := math.Inf(1)
	try := func(f, s float64) {
		if f < 0 || s < 0 {
			return
		}
		var cost float64
		for _, q := range queries {
			y, at := q.latency, f+s*float64(q.batch)
			cost += math.Abs(y-at) / max(y, at)
		}
		if cost < least {
			floor, slope, least = f, s, cost
		}
	}
	for i, p := range queries {
		try(p.latency*floorShare, p.latency*(1-floorShare)/float64(p.batch))
		for _, q := range queries[:i] {
			if p.batch != q.batch {
				s := (p.latency - q.latency) / float64(p.batch-q.batch)
				try(p.latency-s*float64(p.batch), s)
			}
		}
	}
	return floor, slope
}

// agentOf returns the agent of a name. It adds one if there is none. The pointer is valid until the
// next call.
func (l *Learner) agentOf(name names.AgentName) *agent {
	i, found := slices.BinarySearchFunc(l.agents, name,
		func(a agent, name names.AgentName) int { return cmp.Compare(a.name, name) })
	if !found {
		added := agent{name: name, factor: 1} // the first agent defines its type's profile
		if len(l.agents) > 0 {
			added.variance = agentSpread * agentSpread
		}
		l.agents = slices.Insert(l.agents, i, added)
	}
	return &l.agents[i]
}

// observeResidual takes what is left of a residual with a variance of one query. The weight of the
// prior is what the variance says now: at first it has the agents' differences in it, and so the
// first queries count less than they do later.
func (s *sizeFactor) observeResidual(residual, variance float64) {
	prior := variance / (sizeSpread * sizeSpread)
	s.queries += 1 - s.queries/sizeMemory
	gain := 1 / (float64(s.queries) + prior)
	s.log += float32(math.Log1p(min(gain, 1) * residual))
	s.variance = float32(variance * gain)
}

// forgetSizes makes the agent's factors by size uncertain.
func (a *agent) forgetSizes() {
	for c := range a.sizes {
		a.sizes[c].queries = min(a.sizes[c].queries, 1)
	}
}

func (l *Learner) add(i, batch int, latency, square float64) {
	b := &l.bins[i]
	if b.weight >= binMemory {
		b.scaleWeight(1 - 1.0/binMemory)
	}
	b.weight++
	b.batch += float64(batch)
	b.latency += latency
	b.square += square
	l.top = max(l.top, i)
}

// observeShape counts a standardised residual.
func (l *Learner) observeShape(z float64) {
	i := int((z - shapeLow) / shapeStep)
	l.shape[min(max(i, 0), shapeCount-1)]++
}

// observeTail counts an observation in the tail; later, if it is among those that may show a
// lasting change.
func (l *Learner) observeTail(a *agent, o outlier) {
	if a.rise.sum == 0 {
		l.settleTail(a, 1)
	}
	if a.rise.sum == 0 || o.ratio < 1 {
		l.tail.add(float64(o.ratio), float64(o.counted), o.cut)
		return
	}
	if a.pends == tailPending {
		l.settleTail(a, 1)
	}
	a.pending[a.pends] = o
	a.pends++
}

// settleTail counts the agent's pending outliers, by what is predicted since its latencies have
// changed by the factor jump.
func (l *Learner) settleTail(a *agent, jump float64) {
	for _, o := range a.pending[:a.pends] {
		ratio := float64(o.ratio) / jump
		l.tail.add(ratio, min(float64(o.counted), ratio), o.cut)
	}
	a.pends = 0
}

// watch adds a residual to an agent's cumulative sums: logRatio is log(latency / predicted), spread
// its standard deviation. If the sums show a lasting change, watch adopts it and returns true.
func (l *Learner) watch(a *agent, logRatio, spread float64) bool {
	z := min(max(logRatio/spread, -changeClip), changeClip)
	logRatio = min(max(logRatio, -changeJump), changeJump)
	a.rise.add(z-changeSlack, logRatio)
	a.fall.add(-z-changeSlack, logRatio)
	changed := &a.rise
	if a.fall.sum > changed.sum {
		changed = &a.fall
	}
	if changed.sum < changeLimit {
		return false
	}
	jump := math.Exp(changed.ratio / changed.queries)
	l.settleTail(a, jump)
	if len(l.agents) == 1 {
		for i := range l.bins {
			l.bins[i].latency *= jump
		}
	} else {
		a.factor *= jump
		a.forgetSizes() // the change may be of some sizes only
	}
	a.variance = spread * spread / changed.queries
	var all float64
	for i := range l.agents {
		all += l.agents[i].queries
	}
	counts := 1 - (1-changeDoubt)*a.queries/max(all, 1) // only the agent's own part loses weight
	for i := range l.bins {
		if l.bins[i].weight*counts >= minEvidence {
			l.bins[i].scaleWeight(counts)
		}
	}
	a.queries = changed.queries
	a.rise, a.fall = cusum{}, cusum{}
	l.changes++
	l.refitModel()
	return true
}

func (r *cusum) add(step, logRatio float64) {
	r.sum += step
	if r.sum <= 0 {
		*r = cusum{}
		return
	}
	r.queries++
	r.ratio += logRatio
}

// An AgentFactor compares one machine with the mean of its type.
type AgentFactor struct {
	Name names.AgentName
	// Factor is the agent's latency divided by the mean of its type's: 1.5 is half as slow again.
	Factor float64
	// Error is the standard error of Factor; the error of the type's profile is not included.
	Error float64
	// Sizes is, by class of batch sizes, the factor beside Factor, if observations show that the
	// classes differ.
	Sizes []SizeFactor
	// Seen is when the agent's last query was observed.
	Seen time.Time
}

// At returns the agent's latency divided by its type's at a batch size.
func (a *AgentFactor) At(batch int) float64 {
	for _, s := range a.Sizes {
		if batch >= s.First && batch <= s.Last {
			return a.Factor * s.Factor
		}
	}
	return a.Factor
}

// A SizeFactor says that an agent's latency at the batch sizes First..Last is Factor times what the
// agent's own factor says. Error is the standard error of Factor.
type SizeFactor struct {
	First, Last   int
	Factor, Error float64
}

// minSizeErrors and minSizeFactor are the least departure of a size factor from 1, in standard
// errors and by itself, with which those of an agent are told: with less it is chance, since many
// are looked at, or does not matter.
const minSizeErrors, minSizeFactor = 4, 0.05

// isDeparture reports whether the factor departs from 1.
func (s sizeFactor) isDeparture() bool {
	away := math.Abs(float64(s.log))
	return away >= minSizeFactor && away >= minSizeErrors*math.Sqrt(float64(s.variance))
}

// bySize returns the agent's factors by size, nil if none is told.
func (a *agent) bySize() (all []SizeFactor) {
	if !slices.ContainsFunc(a.sizes[:], sizeFactor.isDeparture) {
		return nil
	}
	for c, s := range a.sizes {
		if s.queries == 0 {
			continue
		}
		first, last := 0, min(fineBins+classBins*c, binCount)-1
		if c > 0 {
			first = fineBins + classBins*(c-1)
		}
		f := SizeFactor{
			Factor: math.Exp(float64(s.log)), Error: math.Sqrt(float64(s.variance)),
		}
		f.First, _ = binRange(first)
		_, f.Last = binRange(last)
		all = append(all, f)
	}
	return all
}

// Agents returns the agents seen within the last ten minutes of observations, by name.
func (l *Learner) Agents() []AgentFactor { return slices.Collect(l.EachAgent) }

// EachAgent yields what Agents returns. It allocates only for agents with factors by size. As Table
// does, it takes all evidence into account: factors and profile belong together.
func (l *Learner) EachAgent(yield func(AgentFactor) bool) {
	if l.sinceRefit > 0 {
		l.refitModel()
	}
	mean := l.meanFactor()
	for i := range l.agents {
		a := &l.agents[i]
		if !yield(AgentFactor{a.name, a.factor / mean, math.Sqrt(a.variance), a.bySize(), a.seen}) {
			return
		}
	}
}

// Shared reports whether the learner knows several agents, so that they can be compared.
func (l *Learner) Shared() bool { return len(l.agents) > 1 }

// Factor returns an agent's latency divided by the mean of its type's; 1 for an unknown agent.
func (l *Learner) Factor(agentName names.AgentName) float64 {
	i, found := slices.BinarySearchFunc(l.agents, agentName,
		func(a agent, name names.AgentName) int { return cmp.Compare(a.name, name) })
	if !found {
		return 1
	}
	return l.agents[i].factor / l.meanFactor()
}

// meanFactor returns the mean of the agents' factors. Agents with few queries have little weight.
func (l *Learner) meanFactor() float64 {
	var sum, weight float64
	for i := range l.agents {
		a := &l.agents[i]
		w := a.queries / (a.queries + 20)
		sum += w * a.factor
		weight += w
	}
	if weight == 0 {
		return 1
	}
	return sum / weight
}

// LatencyTable returns the profile learned so far, for the mean of the type's agents. An agent's
// own profile is this one scaled by its Factor. It is nil if no query was observed and there is no
// prior. The mean latency never falls as the batch size grows.
func (l *Learner) LatencyTable() *Table {
	if l.sinceRefit > 0 {
		l.refitModel()
	}
	if l.table == nil {
		l.table = l.fit.makeTable(l)
	}
	return l.table
}

// meanSize is the mean of the logarithms of the agents' factors for a class of batch sizes.
func (l *Learner) meanSize(c int) float64 {
	var sum, weight float64
	for i := range l.agents {
		s := &l.agents[i].sizes[c]
		w := float64(s.queries / (s.queries + 20))
		sum += w * float64(s.log)
		weight += w
	}
	if weight == 0 {
		return 0
	}
	return sum / weight
}

// centerSizes scales the factors by size so that their geometric mean is one: over each agent's
// classes, the rest of which is the agent's own factor, and over the agents of each class.
func (l *Learner) centerSizes() {
	for i := range l.agents {
		a := &l.agents[i]
		var sum, weight float64
		for _, s := range a.sizes {
			w := float64(s.queries / (s.queries + 20))
			sum += w * float64(s.log)
			weight += w
		}
		if sum == 0 {
			continue
		}
		a.factor *= math.Exp(sum / weight)
		for c := range a.sizes {
			if s := &a.sizes[c]; s.queries > 0 {
				s.log -= float32(sum / weight)
			}
		}
	}
	for c := range sizeClasses {
		mean := l.meanSize(c)
		if mean == 0 {
			continue
		}
		for i := range l.agents {
			if s := &l.agents[i].sizes[c]; s.queries > 0 {
				s.log -= float32(mean)
			}
		}
		for i := range l.bins {
			if classOf(i) == c {
				l.bins[i].latency *= math.Exp(mean)
			}
		}
	}
}

// refitModel scales the factors to a mean of one, forgets agents without recent queries, and
// estimates the fit again from the bins.
func (l *Learner) refitModel() {
	l.sinceRefit = 0
	l.table = nil
	l.agents = slices.DeleteFunc(l.agents,
		func(a agent) bool { return l.updated.Sub(a.seen) > agentLife })
	l.centerSizes()
	if mean := l.meanFactor(); mean != 1 {
		for i := range l.agents {
			l.agents[i].factor /= mean
		}
		for i := range l.bins {
			l.bins[i].latency *= mean
		}
	}
	var total float64
	for _, w := range l.shape {
		total += w
	}
	if total > shapeMemory {
		for i := range l.shape {
			l.shape[i] *= shapeMemory / total
		}
	}
	if l.tail.queries > shapeMemory {
		l.tail.scaleWeight(shapeMemory / l.tail.queries)
	}
	l.fit.estimateFrom(l)
}
