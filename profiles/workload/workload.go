package workload

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A Query is one arrival.
type Query struct {
	// At is when the query arrives, since the start of the workload.
	At        time.Duration
	Model     string
	BatchSize int
	// Users is how many users the rows belong to, and Values how many values its ragged features
	// have; 0 if nobody says.
	Users, Values int
	// Work is the batch size that takes as long as the query does, where its users and values make
	// it take longer or shorter than its rows; 0: BatchSize. Only a simulation knows it.
	Work int
	// Deadline is how long after its arrival its client waits; 0 if that is the model's deadline.
	Deadline time.Duration
	// Number counts the queries of a [QueryTrace] from 1; 0: the query was drawn.
	Number int
}

// A Load is the part of a workload that is for one model.
type Load struct {
	Model string
	// Share is the model's part of the queries, relative to the other loads' shares; > 0.
	Share      float64
	BatchSizes *BatchSizes
}

// Queries returns an endless stream of queries for the models of loads, in order of arrival. It
// generates one query at a time.
func Queries(seed uint64, arrivals Arrivals, loads ...Load) (iter.Seq[Query], error) {
	choose, err := newChooser(loads)
	if err != nil {
		return nil, err
	}
	return func(yield func(Query) bool) {
		// Arrivals and sizes are drawn from different random streams, so that the sizes do not
		// change with the arrival process.
		gaps := rand.New(rand.NewPCG(seed, 1))
		sizes := rand.New(rand.NewPCG(seed, 2))
		var at time.Duration
		for {
			gap := arrivals.Gap(gaps)
			if at > math.MaxInt64-gap {
				return // the time overflows, after 292 years
			}
			at += gap
			l := choose(sizes)
			if !yield(Query{At: at, Model: l.Model, BatchSize: l.BatchSizes.Draw(sizes)}) {
				return
			}
		}
	}, nil
}

// newChooser checks loads and returns a function that draws one of them by its
// share.
func newChooser(loads []Load) (func(*rand.Rand) *Load, error) {
	if len(loads) == 0 {
		return nil, fmt.Errorf("a workload needs at least one model")
	}
	loads = slices.Clone(loads)
	weights := make([]float64, len(loads))
	for i, l := range loads {
		if l.BatchSizes == nil {
			return nil, fmt.Errorf("model %q: no batch sizes", l.Model)
		}
		if slices.ContainsFunc(loads[:i], func(o Load) bool { return o.Model == l.Model }) {
			return nil, fmt.Errorf("model %q is given twice", l.Model)
		}
		if !(l.Share > 0) || math.IsInf(l.Share, 0) {
			return nil, fmt.Errorf("model %q: share %v, want a number above 0", l.Model, l.Share)
		}
		weights[i] = l.Share
	}
	if len(loads) == 1 {
		return func(*rand.Rand) *Load { return &loads[0] }, nil
	}
	table := newAliasTable(weights)
	return func(r *rand.Rand) *Load { return &loads[table.draw(r)] }, nil
}

// list joins names for an error message.
func list(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}
