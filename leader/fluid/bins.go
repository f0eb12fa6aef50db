package fluid

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
)

// Latencies gives the mean latency of a batch size.
type Latencies interface {
	Mean(batchSize int) time.Duration
}

// binWidth is the width of the bins of batch sizes: the grid on which the
// published latencies were measured.
const binWidth = 10

// Bins returns the bins of a model's batch sizes, ten sizes each, with their mean latency on each
// type. A bin ends early where a type ceases to answer within qosTarget. The latency is 0 if the
// bin's batches take longer than qosTarget, or if known is nil. weight is the model's part of all
// arrivals.
func Bins(model names.ModelKey, weight float64, sizes profiles.Distribution,
	qosTarget time.Duration,
	known []Latencies) []Bin {
	meets := func(l Latencies, batch int) bool { return l != nil && l.Mean(batch) <= qosTarget }
	var all []Bin
	for len(sizes) > 0 {
		step, n := (sizes[0].BatchSize+binWidth-1)/binWidth, 1
		differs := func(l Latencies) bool {
			return meets(l, sizes[n].BatchSize) != meets(l, sizes[0].BatchSize)
		}
		for n < len(sizes) && sizes[n].BatchSize <= step*binWidth &&
			!slices.ContainsFunc(known, differs) {
			n++
		}
		bin := Bin{
			Model: model, BatchSize: sizes[n-1].BatchSize,
			Latency: make([]time.Duration, len(known)),
		}
		for _, s := range sizes[:n] {
			bin.Share += s.Share
		}
		for t, l := range known {
			if bin.Share == 0 || !meets(l, bin.BatchSize) {
				continue
			}
			var sum float64
			for _, s := range sizes[:n] {
				sum += s.Share * float64(l.Mean(s.BatchSize))
			}
			bin.Latency[t] = time.Duration(sum / bin.Share)
		}
		bin.Share *= weight
		all = append(all, bin)
		sizes = sizes[n:]
	}
	return all
}
