package profiles

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"time"

	"gonum.org/v1/gonum/mathext"
)

// A Monitor watches the queries of one model arrive: the distribution of their batch sizes over the
// last 10,000 (KAIROS section 5.2), their rate, and whether either has changed since the reference
// was taken.
//
// The monitor tests blocks of 64, 256, 512, 1,024 and 4,096 queries, so that it sees a large change
// soon and a small change at all. It compares the batch sizes of a block of at least 256 queries
// with the reference by a G-test over about 16 bins that are equally likely in the reference. It
// compares the time that a block takes by an F-test, which is exact for Poisson arrivals and for
// gaps with a gamma distribution. The variation of the gaps is that of the reference, but at least
// that of Poisson arrivals.
//
// A block that differs is only a suspicion. The monitor then waits for as many queries
// again, but at least 1,000, or for the queries of 30 s if they are at least 100, and
// compares these with the reference. If they differ too, the monitor reports a change, and
// these queries are the new demand. If they do not, it was a pause or a burst: the monitor
// reports nothing and keeps the reference.
//
// The thresholds follow from the accepted number of suspicions by chance: one in 10,000 hours of
// steady load, at any rate. A block of n queries is expected to take n mean gaps, so each of its
// two tests may reject with the probability 1e-4 / hour * n * gap / (2 * 5).
//
// A Monitor is not safe for concurrent use. Observe allocates only when a batch size exceeds all
// before it, and for a reference.
type Monitor struct {
	ring   [monitorWindow]arrival
	next   int     // where the next query goes
	held   int     // queries in the ring
	counts []int32 // of the queries in the ring, by batch size

	began       time.Time // the first query came
	falseAlarms float64   // suspicions by chance, an hour
	reference   *reference
	blocks      [len(blockSizes)]block
	suspicion   *block // the queries since a block differed; nil: none has
	settling    int    // how many queries the suspicion collects before it is compared
	change      *Change
}

type arrival struct {
	at    time.Time
	batch int
}

const (
	monitorWindow = 10_000
	// A reference is taken of at least minReference queries, but after a change of those of
	// settleTime, if they are at least minSettled. All are chosen; monitorWindow is the paper's
	// (KAIROS section 5.2).
	minReference = 1_000
	settleTime   = 30 * time.Second
	minSettled   = 100
	// What comes in the first warmUp is no part of the first reference: clients that begin, or
	// queries that had waited for a leader. Chosen: an election takes about a second.
	warmUp        = time.Second
	referenceBins = 16
	falseAlarms   = 1e-4
	// What follows a suspicion differs from the reference if chance makes such a difference with a
	// lower probability.
	confirmed = 1e-4
)

// blockSizes are the numbers of queries after which a test is made.
var blockSizes = [...]int{64, 256, 512, 1024, 4096}

// minSizesBlock is the smallest block whose batch sizes are tested.
const minSizesBlock = 256

// A reference is what the queries were like when it was taken.
type reference struct {
	QueryMix
	edges   []int // the largest batch size of each bin but the last
	counts  []float64
	queries float64
	gap     float64 // mean, s
	// Squared coefficient of variation of the gaps, at least 1.
	variation float64
}

// A block counts queries since the test before it.
type block struct {
	queries int
	counts  []float64 // by the reference's bins
	start   time.Time // of the query before the first
}

// A ChangeKind is what has changed about the queries.
type ChangeKind string

// What can change.
const (
	BatchSizesChanged ChangeKind = "batch sizes"
	RateChanged       ChangeKind = "arrival rate"
	BothChanged       ChangeKind = "batch sizes and arrival rate"
)

// A Change is a difference between recent queries and the reference that is not chance.
type Change struct {
	Kind ChangeKind
	// Seen is when a block of queries first differed, At when the last of the recent queries
	// arrived, and Queries their number.
	Seen, At time.Time
	Queries  int
	// P is the probability that chance alone makes such a difference.
	P float64
	// Before is what the queries of the reference were like, Now the recent ones.
	Before, Now QueryMix
}

// A QueryMix is what queries are like.
type QueryMix struct {
	Rate float64 // queries/s
	// MeanSize is the mean batch size, and LargeSize that which a twentieth of the queries exceed.
	MeanSize  float64
	LargeSize int
}

func (d QueryMix) String() string {
	return fmt.Sprintf("%s queries/s, mean batch size %s, 5 %% above %d", formatFigures(d.Rate),
		formatFigures(d.MeanSize), d.LargeSize)
}

// formatFigures writes x with four significant figures, or as a whole number from 1,000 on.
func formatFigures(x float64) string {
	if x >= 1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}

func (c Change) String() string {
	return fmt.Sprintf("%s changed: from %v to %v (last %d queries, p = %.1g)", c.Kind, c.Before,
		c.Now, c.Queries, c.P)
}

// NewMonitor returns a monitor that has seen nothing. Its reference is the first 1,000 queries
// after the first second, and the last 10,000 once so many have come without a change.
func NewMonitor() *Monitor { return &Monitor{falseAlarms: falseAlarms} }

// Observe notes the arrival of a query. A batch size outside 1..MaxBatchSize is an
// error and not counted. A now before that of the query before is taken as the same.
func (m *Monitor) Observe(batch int, now time.Time) error {
	if batch < 1 || batch > MaxBatchSize {
		return fmt.Errorf("observe a query: batch size %d is not within 1..%d", batch, MaxBatchSize)
	}
	var before time.Time
	if m.held > 0 {
		before = m.arrivalAt(m.held - 1).at
		if now.Before(before) {
			now = before
		}
	}
	if m.held == monitorWindow {
		m.dropOldest(1)
	}
	m.ring[m.next] = arrival{now, batch}
	m.next = (m.next + 1) % monitorWindow
	m.held++
	if batch >= len(m.counts) {
		m.counts = append(m.counts, make([]int32, batch+1-len(m.counts))...)
	}
	m.counts[batch]++

	if m.reference == nil {
		if m.began.IsZero() {
			m.began = now
		}
		if m.held >= minReference && m.arrivalAt(m.held-minReference).at.Sub(m.began) >= warmUp {
			m.dropOldest(
				sort.Search(m.held,
					func(i int) bool { return m.arrivalAt(i).at.Sub(m.began) >= warmUp }))
			m.takeReference()
		}
		return nil
	}
	bin := sort.SearchInts(m.reference.edges, batch)
	if b := m.suspicion; b != nil {
		b.add(batch, bin, before)
		if b.queries >= m.settling || b.queries >= minSettled && now.Sub(b.start) >= settleTime {
			m.settleSuspicion(now)
		}
		return nil
	}
	for i := range m.blocks {
		b := &m.blocks[i]
		b.add(batch, bin, before)
		if b.queries == blockSizes[i] {
			if m.change == nil && m.isSuspect(b, now) {
				m.suspicion, m.settling = m.newBlock(), max(minReference, b.queries)
				break
			}
			clear(b.counts)
			b.queries = 0
		}
	}
	if m.held == monitorWindow && m.reference.queries < monitorWindow && m.suspicion == nil &&
		m.change == nil {
		m.takeReference()
	}
	return nil
}

// add counts a query; before is when the one before it came.
func (b *block) add(batch, bin int, before time.Time) {
	if b.queries == 0 {
		b.start = before
	}
	b.queries++
	b.counts[bin]++
}

// arrivalAt returns the i-th oldest arrival held.
func (m *Monitor) arrivalAt(i int) *arrival {
	return &m.ring[(m.next-m.held+i+monitorWindow)%monitorWindow]
}

// dropOldest drops the n oldest queries.
func (m *Monitor) dropOldest(n int) {
	for i := range n {
		m.counts[m.arrivalAt(i).batch]--
	}
	m.held -= n
}

// Queries returns how many queries Distribution is of: at most 10,000.
func (m *Monitor) Queries() int { return m.held }

// Distribution returns the distribution of batch sizes of the last 10,000 queries, or of those
// since the last suspicion; nil if there was none.
func (m *Monitor) Distribution() Distribution {
	var d Distribution
	for batch, n := range m.counts {
		if n > 0 {
			d = append(d, Share{batch, float64(n) / float64(m.held)})
		}
	}
	return d
}

// Rate returns the rate of arrivals, queries/s, over the period up to now: over is above
// 0, and shortened to what the queries held cover.
func (m *Monitor) Rate(now time.Time, over time.Duration) float64 {
	if m.held == 0 || over <= 0 {
		return 0
	}
	from := now.Add(-over)
	if oldest := m.arrivalAt(0).at; oldest.After(from) {
		// The oldest opens the period, it does not lie in it.
		if span := now.Sub(oldest).Seconds(); span > 0 {
			return float64(m.held-1) / span
		}
		return 0
	}
	before := sort.Search(m.held, func(i int) bool { return m.arrivalAt(i).at.After(from) })
	return float64(m.held-before) / over.Seconds()
}

// Change returns the first change seen since the reference was taken. It stays until Rebase.
func (m *Monitor) Change() (Change, bool) {
	if m.change == nil {
		return Change{}, false
	}
	return *m.change, true
}

// Rebase makes the queries held the reference, and if they are fewer than 1,000 and no change was
// seen, those and the next: to be called when something was planned for them.
func (m *Monitor) Rebase() {
	m.reference, m.suspicion = nil, nil
	if m.change != nil || m.held >= minReference {
		m.change = nil
		m.takeReference()
	}
}

// takeReference makes a reference of the queries held, and starts the blocks anew.
func (m *Monitor) takeReference() {
	r := &reference{queries: float64(m.held)}
	// A bin takes batch sizes in ascending order until they make up 1 / referenceBins of the
	// queries. A size that makes up as much alone has a bin of its own, also where the reference
	// has none of its neighbours.
	bin := 0.0
	closeBin := func(edge int) {
		r.edges = append(r.edges, edge)
		r.counts = append(r.counts, bin)
		bin = 0
	}
	least := r.queries / referenceBins
	for batch, n := range m.counts {
		count := float64(n)
		if count >= least && batch > 1 && (len(r.edges) == 0 ||
			r.edges[len(r.edges)-1] != batch-1) {
			closeBin(batch - 1)
		}
		if bin += count; bin >= least {
			closeBin(batch)
		}
	}
	if last := len(r.counts) - 1; bin > 0 && bin < least && r.counts[last] < 2*least {
		// What is left is too little for a bin.
		r.counts[last] += bin
		r.edges = r.edges[:last]
	} else {
		r.counts = append(r.counts, bin)
	}

	r.MeanSize, r.LargeSize = m.sizeStatistics()
	gaps := float64(m.held - 1)
	r.gap = m.arrivalAt(m.held-1).at.Sub(m.arrivalAt(0).at).Seconds() / gaps
	var squares float64
	for i := 1; i < m.held; i++ {
		squares += math.Pow(m.arrivalAt(i).at.Sub(m.arrivalAt(i-1).at).Seconds()-r.gap, 2)
	}
	r.Rate, r.variation = rateOf(1, r.gap), 1
	if r.gap > 0 {
		r.variation = max(1, squares/gaps/(r.gap*r.gap))
	}
	m.reference = r
	m.newBlocks()
}

// newBlocks starts the blocks anew.
func (m *Monitor) newBlocks() {
	for i := range m.blocks {
		m.blocks[i] = *m.newBlock()
	}
}

func (m *Monitor) newBlock() *block {
	return &block{
		counts: make([]float64, len(m.reference.counts)),
	}
}

// sizeStatistics returns the mean batch size of the queries held, and that which a twentieth of
// them exceed.
func (m *Monitor) sizeStatistics() (mean float64, large int) {
	below := 0
	for batch, n := range m.counts {
		mean += float64(n) * float64(batch) / float64(m.held)
		if below*20 < m.held*19 {
			large = batch
		}
		below += int(n)
	}
	return mean, large
}

// compareWithReference returns with what probability chance makes the block, which ends now, differ
// as much as it does from the reference, in its batch sizes and in its rate.
func (m *Monitor) compareWithReference(b *block, now time.Time) (sizes, rate float64) {
	n := float64(b.queries)
	rate = spanTest(now.Sub(b.start).Seconds(), n, m.reference)
	sizes = 1
	if b.queries >= minSizesBlock {
		sizes = sizesTest(b.counts, n, m.reference)
	}
	return sizes, rate
}

// isSuspect reports whether a full block that ends now differs from the reference.
func (m *Monitor) isSuspect(b *block, now time.Time) bool {
	const tests = 2 * len(blockSizes)
	limit := m.falseAlarms / 3600 * float64(b.queries) * m.reference.gap / float64(tests)
	sizes, rate := m.compareWithReference(b, now)
	// where the reference's queries came all at once it is 0
	return min(sizes, rate) < max(limit, 1e-30)
}

// settleSuspicion makes a change of what has come since the suspicion, if that differs from the
// reference too.
func (m *Monitor) settleSuspicion(now time.Time) {
	b := m.suspicion
	m.suspicion = nil
	sizes, span := m.compareWithReference(b, now)
	if min(sizes, span) >= confirmed {
		m.newBlocks()
		return
	}
	m.dropOldest(m.held - b.queries)
	c := &Change{
		Kind: BothChanged, Seen: b.start, At: now, Queries: b.queries, P: min(sizes, span),
		Before: m.reference.QueryMix,
	}
	switch {
	case span >= confirmed:
		c.Kind = BatchSizesChanged
	case sizes >= confirmed:
		c.Kind = RateChanged
	}
	c.Now.Rate = rateOf(float64(b.queries), now.Sub(b.start).Seconds())
	c.Now.MeanSize, c.Now.LargeSize = m.sizeStatistics()
	m.change = c
	m.takeReference()
}

func rateOf(n, seconds float64) float64 {
	if seconds <= 0 {
		return math.Inf(1)
	}
	return n / seconds
}

// sizesTest returns the probability that batch sizes from one distribution differ as
// much as those counted and the reference's do: the G-test of homogeneity.
func sizesTest(counts []float64, n float64, r *reference) float64 {
	g, bins := 0.0, 0
	for i, seen := range counts {
		before := r.counts[i]
		both := seen + before
		if both == 0 {
			continue
		}
		bins++
		if seen > 0 {
			g += seen * math.Log(seen*(n+r.queries)/(both*n))
		}
		if before > 0 {
			g += before * math.Log(before*(n+r.queries)/(both*r.queries))
		}
	}
	if bins < 2 || g <= 0 {
		return 1
	}
	// 2 g has a chi-square distribution.
	return mathext.GammaIncRegComp(float64(bins-1)/2, g)
}

// spanTest returns the probability that n arrivals at the reference's rate take a time as far
// from what is expected as span, s. With gaps of a gamma distribution whose squared
// coefficient of variation is v, the ratio of the mean gaps has an F distribution with 2 n / v and
// 2 queries / v degrees of freedom.
func spanTest(span, n float64, r *reference) float64 {
	if r.gap <= 0 {
		if span <= 0 {
			return 1
		}
		return 0
	}
	a, b := n/r.variation, (r.queries-1)/r.variation
	f := a * span / n / r.gap
	below := mathext.RegIncBeta(a, b, f/(f+b))
	above := mathext.RegIncBeta(b, a, b/(f+b))
	return 2 * min(below, above, 0.5)
}
