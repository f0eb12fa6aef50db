package profiles

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/muster-serve/muster/api/document"
)

// An Origin says where the numbers of a table come from.
type Origin string

// The origins of a table.
const (
	// Shipped profiles are part of the program: fitted to measurements that others published.
	Shipped Origin = "shipped"
	// Measured profiles are the statistics of the samples in a file.
	Measured Origin = "measured"
	// Inherited profiles are those of a similar key, such as an earlier version of the model. No
	// query has confirmed them yet.
	Inherited Origin = "inherited"
	// Learned profiles come from queries served under their own key.
	Learned Origin = "learned"
)

// A Knot is the latency at one batch size of a table.
type Knot struct {
	BatchSize int // 1..MaxBatchSize
	Mean      time.Duration
	P50       time.Duration
	P90       time.Duration
	P99       time.Duration
	// Load is the mean over all queries. Mean is that of usual queries: outliers enter it only up
	// to a limit. 0 means that Load equals Mean.
	Load time.Duration
	// Error is the relative standard error of Mean, >= 0: 0.02 is 2 %.
	Error float64
}

// A Table is a latency profile: mean and quantiles of the execution latency as
// functions of the batch size. It is immutable and safe for concurrent use.
//
// Between knots the mean and the quantiles are linear in the batch size. Below the first knot they
// are those of the first knot, since small queries cost nearly the same. Beyond the last knot the
// mean follows the line through the last two knots, or stays constant if this line falls, and the
// quantiles keep their ratios to the mean. If there is only one knot, latency beyond it grows in
// proportion to the batch size, which is the steepest line through it with a floor of 0 or more.
type Table struct {
	key    Key
	origin Origin
	source string
	knots  []Knot
}

// NewTable returns a table with a copy of knots. There must be at least one, with ascending
// batch sizes, 0 < Mean and 0 < P50 <= P90 <= P99. source says in words what was measured;
// it may be empty.
func NewTable(key Key, origin Origin, source string, knots []Knot) (*Table, error) {
	if len(knots) == 0 {
		return nil, fmt.Errorf("profile of %s: no knots", key)
	}
	for i, k := range knots {
		switch {
		case k.BatchSize < 1 || k.BatchSize > MaxBatchSize:
			return nil, fmt.Errorf("profile of %s: knot %d: batch size %d is not within 1..%d", key,
				i, k.BatchSize, MaxBatchSize)
		case i > 0 && k.BatchSize <= knots[i-1].BatchSize:
			return nil, fmt.Errorf(
				"profile of %s: knot %d: batch size %d does not exceed %d before it", key, i,
				k.BatchSize, knots[i-1].BatchSize)
		case k.Mean <= 0:
			return nil, fmt.Errorf("profile of %s: batch size %d: mean latency %v is not positive",
				key, k.BatchSize, k.Mean)
		case k.P50 <= 0 || k.P90 < k.P50 || k.P99 < k.P90:
			return nil, fmt.Errorf(
				"profile of %s: batch size %d: want 0 < p50 <= p90 <= p99, got %v, %v, %v", key,
				k.BatchSize, k.P50, k.P90, k.P99)
		case k.Load < 0:
			return nil, fmt.Errorf("profile of %s: batch size %d: load %v is negative", key,
				k.BatchSize, k.Load)
		case !(k.Error >= 0) || math.IsInf(k.Error, 1):
			return nil, fmt.Errorf(
				"profile of %s: batch size %d: relative error %v is not a finite number >= 0", key,
				k.BatchSize, k.Error)
		}
	}
	return &Table{key: key, origin: origin, source: source, knots: slices.Clone(knots)}, nil
}

// Key returns the key of the profile.
func (t *Table) Key() Key { return t.key }

// Origin returns where the numbers come from.
func (t *Table) Origin() Origin { return t.origin }

// Source says in words what was measured; it may be empty.
func (t *Table) Source() string { return t.source }

// Knots returns a copy of the table's knots.
func (t *Table) Knots() []Knot { return slices.Clone(t.knots) }

// segmentOf returns the two knots between which batch lies, or from which it is extrapolated, and
// the position of batch: 0 at the first knot, 1 at the second, more beyond it.
func (t *Table) segmentOf(batch int) (lo, hi *Knot, share float64) {
	k := t.knots
	i := sort.Search(len(k), func(i int) bool { return k[i].BatchSize >= batch })
	switch {
	case i == 0:
		return &k[0], &k[0], 0
	case i == len(k) && i > 1:
		i--
	case i == len(k): // beyond the only knot: from (0, 0) through it
		return &Knot{}, &k[0], float64(batch) / float64(k[0].BatchSize)
	}
	lo, hi = &k[i-1], &k[i]
	return lo, hi, float64(batch-lo.BatchSize) / float64(hi.BatchSize-lo.BatchSize)
}

// Mean returns the mean latency of a query of the given batch size (>= 1; less is taken as 1).
func (t *Table) Mean(batch int) time.Duration { return saturateDuration(t.meanNs(batch)) }

func (t *Table) meanNs(batch int) float64 {
	lo, hi, share := t.segmentOf(batch)
	a, b := float64(lo.Mean), float64(hi.Mean)
	if share > 1 && b < a {
		return b
	}
	return a + share*(b-a)
}

// Load returns the mean latency of all queries of a batch size, however long: what a query takes of
// a lane's time in the long run. Mean is that of usual queries, of which an outlier counts only up
// to a limit; it says better when a query ends that has begun. They differ only in a profile that
// was learned here: the JSON form has no load, because readers of it match queries, and older ones
// would reject the key.
func (t *Table) Load(batch int) time.Duration {
	lo, hi, share := t.segmentOf(batch)
	ratio := lo.loadRatio()
	ratio += min(share, 1) * (hi.loadRatio() - ratio)
	return saturateDuration(t.meanNs(batch) * ratio)
}

// ByLoad returns the table with loads in place of the means, for what plans with the lanes' time.
func (t *Table) ByLoad() *Table {
	s := *t
	s.knots = slices.Clone(t.knots)
	for i := range s.knots {
		if k := &s.knots[i]; k.Load > 0 {
			k.Mean = k.Load
		}
	}
	return &s
}

// loadRatio is the load divided by the mean.
func (k *Knot) loadRatio() float64 {
	if k.Load == 0 || k.Mean == 0 {
		return 1
	}
	return float64(k.Load) / float64(k.Mean)
}

// Error returns the relative standard error of Mean at a batch size: 0.02 is 2 %.
func (t *Table) Error(batch int) float64 {
	lo, hi, share := t.segmentOf(batch)
	share = min(share, 1)
	return (1-share)*lo.Error + share*hi.Error
}

// Quantile returns the latency that a share p of the queries of the given batch size does not
// exceed. It limits p to 0.0001..0.9999.
//
// A knot holds three quantiles. Between them and above the highest, latency is linear in the normal
// quantile of p. Below the median it is linear too, with the slope for which the mean over all p is
// Mean, as far as latencies stay positive. So Quantile(r.Float64(), batch) draws a random latency
// with the right mean.
func (t *Table) Quantile(p float64, batch int) time.Duration {
	p = min(max(p, 1e-4), 1-1e-4)
	z := normalQuantile(p)
	lo, hi, share := t.segmentOf(batch)
	if share > 1 {
		return saturateDuration(hi.quantileNs(z) * t.meanNs(batch) / float64(hi.Mean))
	}
	a, b := lo.quantileNs(z), hi.quantileNs(z)
	return saturateDuration(a + share*(b-a))
}

func normalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

func normalDensity(z float64) float64 { return math.Exp(-z*z/2) / math.Sqrt(2*math.Pi) }

var (
	z90, z99 = normalQuantile(0.90), normalQuantile(0.99)
	phi0     = normalDensity(0)
	phi90    = normalDensity(z90)
)

// quantileNs returns the latency, in ns, at the normal quantile z.
func (k *Knot) quantileNs(z float64) float64 {
	p50, p90, p99 := float64(k.P50), float64(k.P90), float64(k.P99)
	rise, tail := (p90-p50)/z90, (p99-p90)/(z99-z90)
	switch {
	case z > z90:
		return p90 + (z-z90)*tail
	case z >= 0:
		return p50 + z*rise
	}
	// The integral of a + b z(p) over p from p1 to p2 is a (p2 - p1) + b (phi(z1) - phi(z2)).
	upper := 0.4*p50 + rise*(phi0-phi90) + 0.1*(p90-z90*tail) + tail*phi90
	fall := max(0, (0.5*p50+upper-float64(k.Mean))/phi0)
	return max(p50+z*fall, p50/10)
}

// LargestBatchSize returns the largest batch size, at most limit, up to which all batch sizes have
// a mean latency of at most within; 0 if there is none.
func (t *Table) LargestBatchSize(within time.Duration, limit int) int {
	limit = min(limit, MaxBatchSize)
	for b := 1; b <= limit; b++ {
		if t.Mean(b) > within {
			return b - 1
		}
	}
	return max(limit, 0)
}

// As returns the same table under another key, with the origin Inherited. It is the start for a key
// of which no latency was measured yet. The source says where the numbers came from at first.
func (t *Table) As(key Key) *Table {
	source := t.source
	if t.origin != Inherited || source == "" {
		source = fmt.Sprintf("%s of %s", t.origin, t.key)
	}
	return &Table{key: key, origin: Inherited, source: source, knots: t.knots}
}

// ScaleBy is Scale with a factor for each batch size.
func (t *Table) ScaleBy(factor func(batch int) float64) *Table {
	s := *t
	s.knots = slices.Clone(t.knots)
	for i := range s.knots {
		s.knots[i].scaleLatency(factor(s.knots[i].BatchSize))
	}
	return &s
}

func (k *Knot) scaleLatency(factor float64) {
	for _, d := range []*time.Duration{&k.Mean, &k.P50, &k.P90, &k.P99} {
		*d = max(1, saturateDuration(float64(*d)*factor))
	}
	k.Load = saturateDuration(float64(k.Load) * factor)
}

// Scale returns the table with every latency multiplied by factor, which must be above 0. That is
// the profile of a machine with this factor relative to its type.
func (t *Table) Scale(factor float64) *Table {
	return t.ScaleBy(func(int) float64 { return factor })
}

// Stretch returns the table with batch sizes multiplied by factor, which must be above 0 and finite: a
// batch of factor times as many takes as long.
func (t *Table) Stretch(factor float64) *Table {
	s := *t
	s.knots = nil
	for _, k := range t.knots {
		size := int(min(max(1, math.Round(float64(k.BatchSize)*factor)), MaxBatchSize))
		if n := len(s.knots); n > 0 && s.knots[n-1].BatchSize == size {
			s.knots = s.knots[:n-1] // the larger of two sizes that become one counts
		}
		k.BatchSize = size
		s.knots = append(s.knots, k)
	}
	return &s
}

type tableJSON struct {
	Key
	Origin Origin     `json:"origin"`
	Source string     `json:"source,omitempty"`
	Knots  []knotJSON `json:"knots"`
}

type knotJSON struct {
	BatchSize int     `json:"batch_size"`
	Mean      float64 `json:"mean_ms"`
	P50       float64 `json:"p50_ms"`
	P90       float64 `json:"p90_ms"`
	P99       float64 `json:"p99_ms"`
	Error     float64 `json:"error"`
}

// MarshalJSON writes latencies in milliseconds, exact to the nanosecond. It leaves out loads and
// the key's checksum and neighbours: gateways of older versions, which read this form, do not know
// them, and only learners need them.
func (t *Table) MarshalJSON() ([]byte, error) {
	j := tableJSON{Key: t.key, Origin: t.origin, Source: t.source}
	j.Checksum, j.Beside = "", ""
	for _, k := range t.knots {
		j.Knots = append(j.Knots, knotJSON{
			k.BatchSize, toMs(k.Mean), toMs(k.P50), toMs(k.P90), toMs(k.P99), k.Error,
		})
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads the form that MarshalJSON writes, with the checks of NewTable. An error
// leaves the table as it was.
func (t *Table) UnmarshalJSON(data []byte) error {
	var j tableJSON
	if err := document.JSON(data, &j); err != nil {
		return fmt.Errorf("read latency profile: %w", err)
	}
	knots := make([]Knot, len(j.Knots))
	for i, k := range j.Knots {
		for _, v := range []float64{k.Mean, k.P50, k.P90, k.P99} {
			if !(v <= toMs(longest)) {
				return fmt.Errorf(
					"read latency profile of %s: batch size %d: latency %v ms is above %v", j.Key,
					k.BatchSize, v, longest)
			}
		}
		knots[i] = Knot{
			BatchSize: k.BatchSize, Mean: fromMS(k.Mean), P50: fromMS(k.P50), P90: fromMS(k.P90),
			P99: fromMS(k.P99), Error: k.Error,
		}
	}
	read, err := NewTable(j.Key, j.Origin, j.Source, knots)
	if err != nil {
		return fmt.Errorf("read latency %w", err)
	}
	*t = *read
	return nil
}

// longest is the longest latency that a table holds or returns: 36 years.
const longest time.Duration = 1 << 60

func saturateDuration(ns float64) time.Duration { return time.Duration(min(ns, float64(longest))) }

// maxLatency is the longest execution time that is accepted as a measurement.
const maxLatency = 24 * time.Hour

func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func fromMS(v float64) time.Duration {
	return time.Duration(math.Round(v * float64(time.Millisecond)))
}
