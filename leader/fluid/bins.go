package fluid

import (
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
// type. The latency is 0 if the largest batch of the bin takes longer than qosTarget, or if known
// is nil. weight is the model's part of all arrivals.
func Bins(model names.ModelKey, weight float64, sizes profiles.Distribution,
	qosTarget time.Duration,
	known []Latencies) []Bin {
	var all []Bin
	for len(sizes) > 0 {
		step := (sizes[0].BatchSize + binWidth - 1) / binWidth
		n := 1
		for n < len(sizes) && sizes[n].BatchSize <= step*binWidth {
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
			if l == nil || bin.Share == 0 || l.Mean(bin.BatchSize) > qosTarget {
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
