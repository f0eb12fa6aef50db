package profiles

import (
	"fmt"
	"math"
	"sort"
	"time"

	"gonum.org/v1/gonum/mathext"
)

// A Monitor watches the queries of one model arrive: the distribution of their batch
// sizes over the last 10,000 (KAIROS section 5.2), their rate, and whether either has changed since
// the reference was taken.
//
// Changes are tested for in blocks of 64, 256, 1,024 and 4,096 queries, so that a large change is
// seen soon and a small one at all. The batch sizes of a block are compared with those of the
// reference by a G-test over about 16 bins equally likely in the reference (from 256 queries on).
// The time that a block takes is compared by an F-test, exact for Poisson arrivals and for gaps
// with a gamma distribution; the variation of the gaps is taken from the reference, and at least
// that of Poisson arrivals. Together they raise about one false alarm in 100 million queries.
//
// A Monitor is not safe for concurrent use. Observe allocates only when a batch size
// exceeds all before it, and once for a reference.
type Monitor struct {
	ring   [monitorWindow]arrival
	next   int     // where the next query goes
	held   int     // queries in the ring
	counts []int32 // of the queries in the ring, by batch size

	alarmRate float64 // false alarms a query
	reference *reference
	blocks    [len(blockSizes)]block
	change    *Change
}

type arrival struct {
	at    time.Time
	batch int
}

const (
	monitorWindow = 10_000
	// A reference is taken of at least so many queries.
	leastReference = 1_000
	referenceBins  = 16
	alarmRate      = 1e-8
)

// blockSizes are the numbers of queries after which a test is made.
var blockSizes = [...]int{64, 256, 1024, 4096}

// leastSizesBlock is the smallest block whose batch sizes are tested.
const leastSizesBlock = 256

// A reference is what the queries were like when it was taken.
type reference struct {
	edges   []int // the largest batch size of each bin but the last
	counts  []float64
	queries float64
	sizes   float64 // mean batch size
	gap     float64 // mean, s
	// Squared coefficient of variation of the gaps, at least 1.
	variation float64
}

// A block counts queries since the test before it.
type block struct {
	queries int
	counts  []float64 // by the reference's bins
	sizes   float64   // sum of batch sizes
	start   time.Time // of the query before the first
}

// A ChangeKind is what has changed about the queries.
type ChangeKind string

// What can change.
const (
	BatchSizesChanged ChangeKind = "batch sizes"
	RateChanged       ChangeKind = "arrival rate"
)

// A Change is a difference between recent queries and the reference that is not chance.
type Change struct {
	Kind ChangeKind
	// At is when the last of the recent queries arrived, and Queries their number.
	At      time.Time
	Queries int
	// P is the probability that chance alone makes such a difference.
	P float64
	// Mean batch size and queries/s of the reference and of the recent queries.
	BatchSizeBefore, BatchSize float64
	RateBefore, Rate           float64
}

func (c Change) String() string {
	return fmt.Sprintf(
		"%s changed: mean batch size %.4g to %.4g, rate %.4g/s to %.4g/s (last %d queries, p = "+
			"%.1g)",
		c.Kind, c.BatchSizeBefore, c.BatchSize, c.RateBefore, c.Rate, c.Queries, c.P)
}

// NewMonitor returns a monitor that has seen nothing. Its reference is the first 1,000
// queries.
func NewMonitor() *Monitor { return &Monitor{alarmRate: alarmRate} }

// Observe notes the arrival of a query. A batch size outside 1..MaxBatchSize is an
// error and not counted. A now before that of the query before is taken as the same.
func (m *Monitor) Observe(batch int, now time.Time) error {
	if batch < 1 || batch > MaxBatchSize {
		return fmt.Errorf("observe a query: batch size %d is not within 1..%d", batch, MaxBatchSize)
	}
	var before time.Time
	if m.held > 0 {
		before = m.at(m.held - 1).at
		if now.Before(before) {
			now = before
		}
	}
	if m.held == monitorWindow {
		m.forget(1)
	}
	m.ring[m.next] = arrival{now, batch}
	m.next = (m.next + 1) % monitorWindow
	m.held++
	if batch >= len(m.counts) {
		m.counts = append(m.counts, make([]int32, batch+1-len(m.counts))...)
	}
	m.counts[batch]++

	if m.reference == nil {
		if m.held >= leastReference {
			m.takeReference()
		}
		return nil
	}
	bin := sort.SearchInts(m.reference.edges, batch)
	for i := range m.blocks {
		b := &m.blocks[i]
		if b.queries == 0 {
			b.start = before
		}
		b.queries++
		b.sizes += float64(batch)
		b.counts[bin]++
		if b.queries == blockSizes[i] {
			m.test(b, now)
			clear(b.counts)
			b.queries, b.sizes = 0, 0
		}
	}
	return nil
}

// at returns the i-th oldest arrival held.
func (m *Monitor) at(i int) *arrival {
	return &m.ring[(m.next-m.held+i+monitorWindow)%monitorWindow]
}

// forget drops the n oldest queries.
func (m *Monitor) forget(n int) {
	for i := range n {
		m.counts[m.at(i).batch]--
	}
	m.held -= n
}

// Queries returns how many queries Distribution is of: at most 10,000.
func (m *Monitor) Queries() int { return m.held }

// Distribution returns the distribution of batch sizes of the last 10,000 queries, or of those
// since Rebase dropped the ones before a change; nil if there was none.
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
	if oldest := m.at(0).at; oldest.After(from) {
		// The oldest opens the period, it does not lie in it.
		if span := now.Sub(oldest).Seconds(); span > 0 {
			return float64(m.held-1) / span
		}
		return 0
	}
	before := sort.Search(m.held, func(i int) bool { return m.at(i).at.After(from) })
	return float64(m.held-before) / over.Seconds()
}

// Change returns the first change seen since the reference was taken. It stays until Rebase.
func (m *Monitor) Change() (Change, bool) {
	if m.change == nil {
		return Change{}, false
	}
	return *m.change, true
}

// Rebase makes the queries held the reference, and if they are fewer than 1,000, those and the
// next: to be called when something was planned for them. If a change was seen, queries older than
// those that showed it are dropped first, so that Distribution is of the new kind only.
func (m *Monitor) Rebase() {
	if m.change != nil {
		keep := m.change.Queries
		for i := m.held - 1; i >= 0 && m.at(i).at.After(m.change.At); i-- {
			keep++
		}
		if keep < m.held {
			m.forget(m.held - keep)
		}
		m.change = nil
	}
	m.reference = nil
	if m.held >= leastReference {
		m.takeReference()
	}
}

// takeReference makes a reference of the queries held, and starts the blocks anew.
func (m *Monitor) takeReference() {
	r := &reference{queries: float64(m.held)}
	// Bins: batch sizes one after the other until they make up 1 / referenceBins of the queries.
	// One that does so alone has a bin of its own, apart from its neighbours even where the
	// reference has none of those.
	bin := 0.0
	closeBin := func(edge int) {
		r.edges = append(r.edges, edge)
		r.counts = append(r.counts, bin)
		bin = 0
	}
	least := r.queries / referenceBins
	for batch, n := range m.counts {
		r.sizes += float64(n) * float64(batch) / r.queries
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

	gaps := float64(m.held - 1)
	r.gap = m.at(m.held-1).at.Sub(m.at(0).at).Seconds() / gaps
	var squares float64
	for i := 1; i < m.held; i++ {
		squares += math.Pow(m.at(i).at.Sub(m.at(i-1).at).Seconds()-r.gap, 2)
	}
	r.variation = 1
	if r.gap > 0 {
		r.variation = max(1, squares/gaps/(r.gap*r.gap))
	}
	m.reference = r
	for i := range m.blocks {
		m.blocks[i] = block{counts: make([]float64, len(r.counts))}
	}
}

// test compares a full block that ends now with the reference.
func (m *Monitor) test(b *block, now time.Time) {
	if m.change != nil {
		return
	}
	r := m.reference
	n := float64(b.queries)
	span := now.Sub(b.start).Seconds()
	// Each block has its part of the false alarms, each of the tests of a block half of it.
	limit := m.alarmRate * n / float64(len(blockSizes)) / 2
	kind, p := RateChanged, spanTest(span, n, r)
	if b.queries >= leastSizesBlock {
		if q := sizesTest(b.counts, n, r); q < p {
			kind, p = BatchSizesChanged, q
		}
	}
	if p >= limit {
		return
	}
	m.change = &Change{
		Kind: kind, At: now, Queries: b.queries, P: p,
		BatchSizeBefore: r.sizes, BatchSize: b.sizes / n, RateBefore: rate(1, r.gap),
		Rate: rate(n, span),
	}
}

func rate(n, seconds float64) float64 {
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
