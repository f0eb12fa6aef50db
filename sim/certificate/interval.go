package certificate

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

// A Bin counts the queries that arrived in one stretch of time.
type Bin struct{ Queries, InTime int }

// BinLength is the length of the bins of a record: a minute, within which a fleet's queues fill and
// empty, or less for a short record, so that there are about sixty.
func BinLength(record time.Duration) time.Duration {
	return min(time.Minute, max(time.Second, (record/60).Round(time.Second)))
}

const (
	// confidence is that of an Interval, as it is usual.
	confidence = 0.95
	// resamples is how many samples the bootstrap draws. Chosen: the ends of an interval of 2,000
	// differ by some 2 % of its width from seed to seed.
	resamples = 2000
)

// An Interval is a share with the ends of its 95 % confidence interval, each in 0..1.
type Interval struct {
	Share float64 `json:"share"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// IntervalOf returns the share of the bins' queries that were in time. Late queries come together, in
// a queue that one burst has made, so the interval is that of a moving-block bootstrap (Künsch,
// 1989) over blocks of n^(1/2) neighbouring bins, which keeps such stretches whole: where trouble
// lasts four bins in the mean, n^(1/3) covers the share in 4 % fewer records. What a record has not
// seen, such as an hour without a burst that comes daily, no interval knows. It is never
// narrower than the exact one of as many independent queries (Clopper and Pearson, 1934): where no
// query was late, the bootstrap alone would be certain. seed seeds the bootstrap.
func IntervalOf(bins []Bin, seed uint64) Interval {
	var all Bin
	for _, b := range bins {
		all.Queries += b.Queries
		all.InTime += b.InTime
	}
	if all.Queries == 0 {
		return Interval{1, 0, 1}
	}
	low, high := exactEnds(all)
	length := int(math.Ceil(math.Sqrt(float64(len(bins)))))
	random := rand.New(rand.NewPCG(seed, 21))
	shares := make([]float64, 0, resamples)
	for range resamples {
		var sum Bin
		for taken := 0; taken < len(bins); taken += length {
			// Blocks go round at the end, so that all bins are drawn as often.
			first := random.IntN(len(bins))
			for i := range min(length, len(bins)-taken) {
				b := bins[(first+i)%len(bins)]
				sum.Queries += b.Queries
				sum.InTime += b.InTime
			}
		}
		if sum.Queries > 0 {
			shares = append(shares, float64(sum.InTime)/float64(sum.Queries))
		}
	}
	if len(shares) > 0 {
		slices.Sort(shares)
		tail := (1 - confidence) / 2 * float64(len(shares))
		low = min(low, shares[int(tail)])
		high = max(high, shares[len(shares)-1-int(tail)])
	}
	return Interval{float64(all.InTime) / float64(all.Queries), low, high}
}

// exactEnds are the ends of the interval of Clopper and Pearson.
func exactEnds(b Bin) (low, high float64) {
	n, k := float64(b.Queries), float64(b.InTime)
	low, high = 0, 1
	if k > 0 {
		low = distuv.Beta{Alpha: k, Beta: n - k + 1}.Quantile((1 - confidence) / 2)
	}
	if k < n {
		high = distuv.Beta{Alpha: k + 1, Beta: n - k}.Quantile((1 + confidence) / 2)
	}
	return low, high
}
