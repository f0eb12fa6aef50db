package profiles

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

// An Origin says where the numbers of a table come from.
type Origin string

// The origins of a table.
const (
	// Shipped: measured by others, fitted by us, part of the program.
	Shipped Origin = "shipped"
	// Measured: the samples of a file, as they are.
	Measured Origin = "measured"
	// Inherited: taken over from a like key, such as a model's version before, and not yet
	// confirmed.
	Inherited Origin = "inherited"
	// Learned: from queries served under this very key.
	Learned Origin = "learned"
)

// A Knot is what a table says at one batch size.
type Knot struct {
	BatchSize int // 1..MaxBatchSize
	Mean      time.Duration
	P50       time.Duration
	P90       time.Duration
	P99       time.Duration
	// Error is the relative standard error of Mean, >= 0: 0.02 is 2 %.
	Error float64
}

// A Table is a latency profile: mean and quantiles of the execution latency as
// functions of the batch size. It is immutable and safe for concurrent use.
//
// Between knots everything is linear in the batch size. Below the first knot
// the first knot holds, as if a small query cost as much (it nearly does). Beyond the
// last knot the line of the mean through the last two goes on, flat if it falls, and the
// quantiles keep their ratios to it; with one knot only, latency grows in proportion to
// the batch size, the most a line through it can mean.
type Table struct {
	key    Key
	origin Origin
	source string
	knots  []Knot
}

// NewTable returns a table through knots, which it copies: at least one, batch sizes
// ascending, 0 < Mean, 0 < P50 <= P90 <= P99. source says in words what was measured,
// and may be empty.
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
		case !(k.Error >= 0) || math.IsInf(k.Error, 1):
			return nil, fmt.Errorf(
				"profile of %s: batch size %d: relative error %v is not a finite number >= 0", key,
				k.BatchSize, k.Error)
		}
	}
	return &Table{key: key, origin: origin, source: source, knots: slices.Clone(knots)}, nil
}

// Key returns what the table is about.
func (t *Table) Key() Key { return t.key }

// Origin returns where the numbers come from.
func (t *Table) Origin() Origin { return t.origin }

// Source says in words what was measured; it may be empty.
func (t *Table) Source() string { return t.source }

// Knots returns a copy of the table's knots.
func (t *Table) Knots() []Knot { return slices.Clone(t.knots) }

// segment returns the two knots that batch lies between, or is extrapolated
// from, and how far it is from the first (0) to the second (1).
func (t *Table) segment(batch int) (lo, hi *Knot, share float64) {
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
func (t *Table) Mean(batch int) time.Duration { return saturated(t.mean(batch)) }

func (t *Table) mean(batch int) float64 {
	lo, hi, share := t.segment(batch)
	a, b := float64(lo.Mean), float64(hi.Mean)
	if share > 1 && b < a {
		return b
	}
	return a + share*(b-a)
}

// Error returns the relative standard error of Mean at a batch size: 0.02 is 2 %.
func (t *Table) Error(batch int) float64 {
	lo, hi, share := t.segment(batch)
	share = min(share, 1)
	return (1-share)*lo.Error + share*hi.Error
}

// Quantile returns the latency that a share p of the queries of the given batch
// size does not exceed; p in (0, 1), and what lies outside is taken as the nearest within
// 0.0001..0.9999.
//
// A knot holds three quantiles; between them and above, latency is linear in the
// normal quantile of p. Below the median it falls along such a line too, whose slope is
// the one that lets Quantile of a uniform p have the mean Mean (as far as
// latency stays positive). So Quantile(r.Float64(), batch) draws a latency.
func (t *Table) Quantile(p float64, batch int) time.Duration {
	p = min(max(p, 1e-4), 1-1e-4)
	z := normalQuantile(p)
	lo, hi, share := t.segment(batch)
	if share > 1 {
		return saturated(hi.quantile(z) * t.mean(batch) / float64(hi.Mean))
	}
	a, b := lo.quantile(z), hi.quantile(z)
	return saturated(a + share*(b-a))
}

func normalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

func normalDensity(z float64) float64 { return math.Exp(-z*z/2) / math.Sqrt(2*math.Pi) }

var (
	z90, z99 = normalQuantile(0.90), normalQuantile(0.99)
	phi0     = normalDensity(0)
	phi90    = normalDensity(z90)
)

// quantile returns the latency, in ns, whose normal quantile is z.
func (k *Knot) quantile(z float64) float64 {
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

// LargestBatchSize returns the largest batch size up to limit (1..MaxBatchSize)
// whose mean latency, and that of every smaller one, is at most within; 0 if
// there is none.
func (t *Table) LargestBatchSize(within time.Duration, limit int) int {
	limit = min(limit, MaxBatchSize)
	for b := 1; b <= limit; b++ {
		if t.Mean(b) > within {
			return b - 1
		}
	}
	return max(limit, 0)
}

// As returns the same numbers under another key, as Inherited: a start for a key
// under which nothing was measured yet.
func (t *Table) As(key Key) *Table {
	return &Table{
		key: key, origin: Inherited, source: fmt.Sprintf("%s of %s", t.origin, t.key),
		knots: t.knots,
	}
}

// Scale returns the table with every latency multiplied by factor, which must be
// positive: what a machine that much slower than the mean of its type would show.
func (t *Table) Scale(factor float64) *Table {
	s := *t
	s.knots = slices.Clone(t.knots)
	for i := range s.knots {
		k := &s.knots[i]
		for _, d := range []*time.Duration{&k.Mean, &k.P50, &k.P90, &k.P99} {
			*d = max(1, saturated(float64(*d)*factor))
		}
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

// MarshalJSON writes latencies in milliseconds with nanosecond digits. Of the key it leaves the
// checksum out, which is only for who learns: what is written is read by gateways of any version.
func (t *Table) MarshalJSON() ([]byte, error) {
	j := tableJSON{Key: t.key, Origin: t.origin, Source: t.source}
	j.Checksum = ""
	for _, k := range t.knots {
		j.Knots = append(j.Knots, knotJSON{
			k.BatchSize, ms(k.Mean), ms(k.P50), ms(k.P90), ms(k.P99), k.Error,
		})
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote and checks it as NewTable does; on
// error the table is as it was.
func (t *Table) UnmarshalJSON(data []byte) error {
	var j tableJSON
	if err := strictJSON(data, &j); err != nil {
		return fmt.Errorf("read latency profile: %w", err)
	}
	knots := make([]Knot, len(j.Knots))
	for i, k := range j.Knots {
		for _, v := range []float64{k.Mean, k.P50, k.P90, k.P99} {
			if !(v <= ms(longest)) {
				return fmt.Errorf(
					"read latency profile of %s: batch size %d: latency %v ms is above %v", j.Key,
					k.BatchSize, v, longest)
			}
		}
		knots[i] = Knot{
			k.BatchSize, fromMS(k.Mean), fromMS(k.P50), fromMS(k.P90), fromMS(k.P99), k.Error,
		}
	}
	read, err := NewTable(j.Key, j.Origin, j.Source, knots)
	if err != nil {
		return fmt.Errorf("read latency %w", err)
	}
	*t = *read
	return nil
}

// longest is the longest latency a table holds or gives: 36 years.
const longest time.Duration = 1 << 60

func saturated(ns float64) time.Duration { return time.Duration(min(ns, float64(longest))) }

// maxLatency is the longest execution that counts as a measurement.
const maxLatency = 24 * time.Hour

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func fromMS(v float64) time.Duration {
	return time.Duration(math.Round(v * float64(time.Millisecond)))
}
