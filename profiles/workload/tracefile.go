package workload

import (
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// A TraceFile is a recorded workload: each query's arrival, model and batch size. It takes 16 bytes
// of memory per query.
type TraceFile struct {
	name    string
	models  []string
	queries []tracedQuery
}

type tracedQuery struct {
	at        time.Duration
	model     uint32 // index into models
	batchSize uint32
}

// OpenTraceFile reads a file as ReadTraceFile does.
func OpenTraceFile(path string) (*TraceFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read arrivals: %w", err)
	}
	defer f.Close()
	return ReadTraceFile(path, f)
}

// ReadTraceFile reads CSV: a header line with the columns arrival_ms, model and batch_size, then
// one line per query in the order of arrival. Times count from the first arrival, whatever it is: a
// record may have those of a clock. name is the file's name in errors.
func ReadTraceFile(name string, r io.Reader) (*TraceFile, error) {
	t, err := newCSVTable(name, r, []string{"arrival_ms", "model", "batch_size"}, nil)
	if err != nil {
		return nil, err
	}
	f := &TraceFile{name: name}
	index := map[string]uint32{}
	var last time.Duration
	for t.next() {
		ms, err := t.numberOf("arrival_ms")
		if err != nil {
			return nil, err
		}
		if ms < 0 || ms > float64(math.MaxInt64/int64(time.Millisecond)) {
			return nil, t.errorf("arrival_ms", "found %v, want a time of 0 ms or more", ms)
		}
		at := time.Duration(math.Round(ms * float64(time.Millisecond)))
		if at < last {
			return nil, t.errorf("arrival_ms", "found %v ms after %v ms, want arrivals in order",
				ms, float64(last)/float64(time.Millisecond))
		}
		last = at
		model := t.textOf("model")
		if model == "" {
			return nil, t.errorf("model", "found no name")
		}
		size, err := t.integerOf("batch_size", 1, maxBatchSize)
		if err != nil {
			return nil, err
		}
		m, ok := index[model]
		if !ok {
			m = uint32(len(f.models))
			model = strings.Clone(model) // so that the rest of its line is not kept in memory
			index[model] = m
			f.models = append(f.models, model)
		}
		f.queries = append(f.queries, tracedQuery{at, m, uint32(size)})
	}
	if t.err != nil {
		return nil, t.err
	}
	if len(f.queries) == 0 {
		return nil, fmt.Errorf("%s: no queries after the header", name)
	}
	first := f.queries[0].at
	for i := range f.queries {
		f.queries[i].at -= first
	}
	return f, nil
}

// Models returns the models that occur, sorted.
func (f *TraceFile) Models() []string { return slices.Sorted(slices.Values(f.models)) }

// Largest is the largest batch size of a model; 0 if it does not occur.
func (f *TraceFile) Largest(model string) int {
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
func (f *TraceFile) BatchSizes(model string) *BatchSizes {
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
func (f *TraceFile) Len() int { return len(f.queries) }

// Duration is when the last query arrives, since the first.
func (f *TraceFile) Duration() time.Duration { return f.queries[len(f.queries)-1].at }

// Rate is the mean number of arrivals a second; 0 if all arrive at once.
func (f *TraceFile) Rate() float64 {
	if d := f.Duration(); d > 0 {
		return float64(len(f.queries)-1) / d.Seconds()
	}
	return 0
}

// Queries iterates over the recorded queries.
func (f *TraceFile) Queries() iter.Seq[Query] {
	return func(yield func(Query) bool) {
		for _, q := range f.queries {
			if !yield(Query{At: q.at, Model: f.models[q.model], BatchSize: int(q.batchSize)}) {
				return
			}
		}
	}
}
