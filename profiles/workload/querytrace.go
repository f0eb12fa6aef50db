package workload

import (
	"iter"
	"slices"
	"time"
)

// A QueryTrace is a recorded workload: queries in order of their arrival. It takes 40 bytes of memory
// a query.
type QueryTrace struct {
	name    string
	models  []string
	index   map[string]uint32 // of models
	queries []tracedQuery
}

type tracedQuery struct {
	at, deadline  time.Duration
	model         uint32 // index into models
	batchSize     uint32
	users, values uint32
}

// NewQueryTrace returns an empty trace. name is for [BatchSizes.String].
func NewQueryTrace(name string) *QueryTrace {
	return &QueryTrace{name: name, index: map[string]uint32{}}
}

// Add adds a query, whose Number it ignores. It must not arrive before the last one.
func (f *QueryTrace) Add(q Query) {
	m, ok := f.index[q.Model]
	if !ok {
		m = uint32(len(f.models))
		f.index[q.Model] = m
		f.models = append(f.models, q.Model)
	}
	f.queries = append(f.queries, tracedQuery{q.At, q.Deadline, m, uint32(q.BatchSize),
		uint32(q.Users), uint32(q.Values)})
}

// Models returns the models that occur, sorted.
func (f *QueryTrace) Models() []string { return slices.Sorted(slices.Values(f.models)) }

// Largest is the largest batch size of a model; 0 if it does not occur.
func (f *QueryTrace) Largest(model string) int {
	m := slices.Index(f.models, model)
	var largest uint32
	for _, q := range f.queries {
		if int(q.model) == m {
			largest = max(largest, q.batchSize)
		}
	}
	return int(largest)
}

// BatchSizes returns the distribution of a model's batch sizes; nil if the model does not occur.
func (f *QueryTrace) BatchSizes(model string) *BatchSizes {
	weights := make([]float64, f.Largest(model)+1)
	for _, q := range f.queries {
		if f.models[q.model] == model {
			weights[q.batchSize]++
		}
	}
	if len(weights) == 1 {
		return nil
	}
	return newBatchSizes(f.name, weights)
}

// Len is the number of queries.
func (f *QueryTrace) Len() int { return len(f.queries) }

// Duration is when the last query arrives, since the first.
func (f *QueryTrace) Duration() time.Duration {
	if len(f.queries) == 0 {
		return 0
	}
	return f.queries[len(f.queries)-1].at - f.queries[0].at
}

// Rate is the mean number of arrivals a second; 0 if all arrive at once.
func (f *QueryTrace) Rate() float64 {
	if d := f.Duration(); d > 0 {
		return float64(len(f.queries)-1) / d.Seconds()
	}
	return 0
}

// Queries iterates over the recorded queries. Times count from the first arrival, whatever it is: a
// record may have those of a clock.
func (f *QueryTrace) Queries() iter.Seq[Query] {
	return func(yield func(Query) bool) {
		for i, q := range f.queries {
			if !yield(Query{
				At: q.at - f.queries[0].at, Model: f.models[q.model], BatchSize: int(q.batchSize),
				Users: int(q.users), Values: int(q.values), Deadline: q.deadline, Number: i + 1,
			}) {
				return
			}
		}
	}
}
