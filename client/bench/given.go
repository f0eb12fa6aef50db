package bench

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/profiles/workload"
)

// Given has the inputs of a model's queries, in place of random ones. Whoever makes it must not
// change it any more. Queries, Rows or Recorded is set.
type Given struct {
	// Queries are sent as they are. When a query of a batch size is due, one of those with this
	// batch size is chosen at random, each as likely as another.
	Queries []*oip.Request
	// Rows are the inputs with all their rows. A query sends consecutive rows.
	Rows []tensor.Tensor
	// Recorded are sent as they are, when the query of this Number of a [workload.QueryTrace] is
	// due.
	Recorded map[int]RecordedInputs
}

// A RecordedInputs has the inputs of a recorded query.
type RecordedInputs struct {
	Rows   int // the batch size, which the inputs alone need not say
	Inputs []tensor.Tensor
}

// BatchSizes returns how often each batch size is among Queries, as a distribution of that name.
// batchless says that they are for a model without a batch dimension, so that each is one item.
func (g *Given) BatchSizes(name string, batchless bool) (*workload.BatchSizes, error) {
	counts := map[int]int{}
	for i, q := range g.Queries {
		b, err := sizeOf(q, batchless)
		if err != nil {
			return nil, fmt.Errorf("query %d: %w", i+1, err)
		}
		counts[b]++
	}
	var pmf []workload.Probability
	for b, n := range counts {
		pmf = append(pmf, workload.Probability{
			BatchSize: b, P: float64(n) / float64(len(g.Queries)),
		})
	}
	slices.SortFunc(pmf, func(a, b workload.Probability) int { return a.BatchSize - b.BatchSize })
	return workload.Weighted(name, pmf)
}

// sizeOf returns the batch size of a query.
func sizeOf(q *oip.Request, batchless bool) (int, error) {
	if batchless {
		return 1, nil
	}
	return batchSizeOf(q.Inputs)
}

// batchSizeOf returns the batch size that all inputs have.
func batchSizeOf(inputs []tensor.Tensor) (int, error) {
	if len(inputs) == 0 {
		return 0, errors.New("no inputs")
	}
	for _, t := range inputs {
		switch first := inputs[0]; {
		case len(t.Shape) == 0 || t.Shape[0] < 1:
			return 0, fmt.Errorf("input %q of shape %v has no rows", t.Name, t.Shape)
		case t.Shape[0] != first.Shape[0]:
			return 0, fmt.Errorf("input %q has %d rows, but input %q has %d", t.Name, t.Shape[0],
				first.Name, first.Shape[0])
		}
	}
	return int(inputs[0].Shape[0]), nil
}

// useGiven makes the given inputs those of the model.
func (m *TargetModel) useGiven(g *Given) error {
	if g.Recorded != nil {
		m.recorded = g.Recorded
		return nil
	}
	if len(g.Queries) > 0 {
		m.queries = map[int][]*oip.Request{}
		m.rows = 0
		for i, q := range g.Queries {
			b, err := sizeOf(q, m.batchless)
			if err != nil {
				return fmt.Errorf("query %d: %w", i+1, err)
			}
			m.queries[b] = append(m.queries[b], q)
			m.rows = max(m.rows, b)
		}
		return nil
	}
	rows, err := batchSizeOf(g.Rows)
	if err != nil {
		return err
	}
	if m.rows = rows; rows < m.LargestBatchSize {
		m.LargestBatchSize = rows
		m.Notes = append(m.Notes,
			fmt.Sprintf("%d rows are given; larger batch sizes are not sent", rows))
	}
	for _, t := range g.Rows {
		in := input{name: t.Name, dataType: t.DataType, shape: t.Shape[1:], data: t.Data}
		if t.DataType != tensor.Bytes {
			in.rowBytes = len(t.Data) / rows
		} else if in.ends, err = rowEnds(t.Data, rows); err != nil {
			return fmt.Errorf("input %q: %w", t.Name, err)
		}
		m.inputs = append(m.inputs, in)
	}
	return nil
}

// rowEnds returns where each of the rows of strings ends in data. All rows have as many strings.
func rowEnds(data []byte, rows int) ([]int, error) {
	var ends []int // of the strings
	for at := 0; at < len(data); {
		if len(data)-at < 4 || len(data)-at-4 < int(binary.LittleEndian.Uint32(data[at:])) {
			return nil, errors.New("the last string is cut short")
		}
		at += 4 + int(binary.LittleEndian.Uint32(data[at:]))
		ends = append(ends, at)
	}
	perRow := len(ends) / rows
	if perRow*rows != len(ends) || perRow == 0 {
		return nil, fmt.Errorf("%d strings in %d rows", len(ends), rows)
	}
	for i := range rows {
		ends[i] = ends[(i+1)*perRow-1]
	}
	return ends[:rows], nil
}

// hasBatch reports whether a query of the batch size can be made.
func (m *TargetModel) hasBatch(batchSize int) bool {
	if m.queries != nil {
		return len(m.queries[batchSize]) > 0
	}
	return batchSize >= 1 && batchSize <= m.rows
}

// hasInputs reports whether there are inputs for a query.
func (m *TargetModel) hasInputs(q workload.Query) bool {
	if m.recorded != nil {
		return m.recorded[q.Number].Rows == q.BatchSize
	}
	return m.hasBatch(q.BatchSize)
}

// smallestQuery returns a query of which there are inputs, and no smaller one.
func (m *TargetModel) smallestQuery() (q workload.Query) {
	if m.recorded == nil {
		return workload.Query{BatchSize: m.smallestBatch()}
	}
	for number, r := range m.recorded {
		if q.Number == 0 || r.Rows < q.BatchSize || r.Rows == q.BatchSize && number < q.Number {
			q = workload.Query{BatchSize: r.Rows, Number: number}
		}
	}
	return q
}

// smallestBatch returns the smallest batch size of which a query can be made.
func (m *TargetModel) smallestBatch() int {
	b := 1
	for !m.hasBatch(b) && b < m.rows {
		b++
	}
	return b
}

// makeQuery returns a query of the given batch size, of which the model must have some. It is the
// caller's, but shares the tensors' data with others.
func (m *TargetModel) makeQuery(batchSize int, r *rand.Rand) *oip.Request {
	given := m.queries[batchSize]
	q := given[r.IntN(len(given))]
	return &oip.Request{
		Model: m.Name, Parameters: q.Parameters, Inputs: slices.Clone(q.Inputs), Outputs: q.Outputs,
		Timeout: q.Timeout, LeastAccuracy: cmp.Or(m.LeastAccuracy, q.LeastAccuracy),
	}
}
