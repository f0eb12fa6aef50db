package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/profiles/workload"
)

// A Server answers queries; *client.Client is one.
type Server interface {
	Infer(ctx context.Context, req *oip.Request) (*oip.Response, error)
	ModelMetadata(ctx context.Context, model, version string) (*inference.ModelMetadataResponse,
		error)
}

// A TargetModel is a model under load, with inputs ready to be sent.
type TargetModel struct {
	Name string
	// QoSTarget is the latency within which QoSPercentile percent of the queries, in (0, 100],
	// should be answered.
	QoSTarget     time.Duration
	QoSPercentile float64
	// Timeout is how long after a query was due its client stops waiting.
	Timeout time.Duration
	// LeastAccuracy is demanded of the variants that answer; 0: any will do.
	LeastAccuracy float64
	// LargestBatchSize is the largest batch size that can be sent: that of the options, or the
	// model's if that is smaller.
	LargestBatchSize int
	// Notes say, for the user, what had to be guessed or reduced.
	Notes []string

	batchless bool // each query is one row, whose shapes are the query's
	rows      int  // number of rows that the inputs hold; the largest batch size of queries
	inputs    []input
	queries   map[int][]*oip.Request // given ones, by batch size; nil: inputs has the rows
	recorded  map[int]RecordedInputs // given ones, by number; nil: queries or inputs are used
	// expected are the answers to all rows, by version; nil: answers are not compared
	expected map[names.ModelKey][]expectedRows
}

// An input holds rows of values. A query of batch size b sends b consecutive rows without copying
// them.
type input struct {
	name     string
	dataType tensor.DataType
	shape    []int64 // without the batch size, if there is one
	scalar   bool    // without dimensions: a query has one value, whatever its batch size
	rowBytes int     // of each row, unless there are ends
	ends     []int   // where each row ends, if rows differ in length
	data     []byte
}

// rowsFrom returns n rows from row from on.
func (in *input) rowsFrom(from, n int) []byte {
	if in.scalar {
		n = 1
	}
	if in.ends == nil {
		return in.data[from*in.rowBytes : (from+n)*in.rowBytes]
	}
	start := 0
	if from > 0 {
		start = in.ends[from-1]
	}
	return in.data[start:in.ends[from+n-1]]
}

// ModelOptions set what the server's metadata leaves open, or override it.
type ModelOptions struct {
	// LargestBatchSize is the largest batch size to send; > 0.
	LargestBatchSize int
	// QoSTarget overrides the server's; 0 keeps that. It is required if the server gives none. It
	// is at least a microsecond.
	QoSTarget time.Duration
	// Timeout overrides the model's deadline; 0 keeps that.
	Timeout time.Duration
	// LeastAccuracy is demanded of the variants that answer; 0: any will do.
	LeastAccuracy float64
	// Seed seeds the random inputs.
	Seed uint64
	// Given, if set, replaces the random inputs.
	Given *Given
	// Shapes are those of inputs with dimensions that the model leaves open, which are 1 otherwise.
	// Of an input with a batch size the first dimension is that, and is not used.
	Shapes map[string][]int64
}

// These limit the memory of a model's inputs. Spare rows, up to spareBytes, let queries of the same
// size have different inputs.
const (
	spareBytes    = 64 << 20
	maxInputBytes = 2 << 30
)

// NewTargetModel asks the server for the model's inputs, makes random ones unless some are given,
// and sends one small query to check that the server accepts them. It blocks until that is
// answered or ctx ends.
func NewTargetModel(ctx context.Context, server Server, name string, o ModelOptions) (*TargetModel,
	error) {
	metadata, err := server.ModelMetadata(ctx, name, "")
	if err != nil {
		return nil, fmt.Errorf("metadata of model %q: %w", name, err)
	}
	m, err := newModel(metadata, name, o)
	if err != nil {
		return nil, fmt.Errorf("model %q: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, max(m.Timeout, 10*time.Second))
	defer cancel()
	first, _ := m.makeRequest(m.smallestQuery(), rand.New(rand.NewPCG(o.Seed, 0)))
	answer, err := server.Infer(ctx, first)
	if err != nil {
		return nil, fmt.Errorf("first query to model %q: %w", name, err)
	}
	answer.Release()
	return m, nil
}

// Batchless asks the server whether a model has no batch dimension.
func Batchless(ctx context.Context, server Server, name string) (bool, error) {
	metadata, err := server.ModelMetadata(ctx, name, "")
	if err != nil {
		return false, fmt.Errorf("metadata of model %q: %w", name, err)
	}
	properties, err := oip.ParseProperties(metadata.GetProperties())
	if err != nil {
		return false, fmt.Errorf("model %q: %w", name, err)
	}
	return properties.Batchless, nil
}

func newModel(metadata *inference.ModelMetadataResponse, name string,
	o ModelOptions) (*TargetModel, error) {
	properties, err := oip.ParseProperties(metadata.GetProperties())
	if err != nil {
		return nil, err
	}
	m := &TargetModel{
		Name: name, QoSTarget: o.QoSTarget, QoSPercentile: properties.QoSPercentile,
		Timeout: o.Timeout, LeastAccuracy: o.LeastAccuracy, batchless: properties.Batchless,
	}
	if m.QoSTarget == 0 {
		m.QoSTarget = properties.QoSTarget
	}
	switch {
	case m.QoSTarget <= 0:
		return nil, fmt.Errorf("the server gives no QoS target; set one")
	case m.QoSTarget < histogramUnit: // latencies are whole units, from one on
		return nil, fmt.Errorf("QoS target %v, want at least %v", m.QoSTarget, histogramUnit)
	}
	if m.QoSPercentile == 0 {
		m.QoSPercentile = 99
	}
	if m.Timeout == 0 {
		m.Timeout = max(properties.Deadline, 10*m.QoSTarget)
	}
	m.LargestBatchSize = o.LargestBatchSize
	if most := properties.LargestBatchSize; most > 0 && most < m.LargestBatchSize {
		m.LargestBatchSize = most
		m.Notes = append(m.Notes,
			fmt.Sprintf("takes batch sizes up to %d; larger ones are not sent", most))
	}
	if o.Given != nil {
		return m, m.useGiven(o.Given)
	}
	if len(metadata.GetInputs()) == 0 {
		return nil, fmt.Errorf("the server's metadata lists no inputs")
	}
	rowBytes := 0
	unused := maps.Clone(o.Shapes)
	for _, in := range metadata.GetInputs() {
		if slices.Contains(properties.Optional, in.GetName()) && o.Shapes[in.GetName()] == nil {
			continue // the model has a value
		}
		p, err := m.addInput(in, o.Shapes[in.GetName()])
		if err != nil {
			return nil, err
		}
		delete(unused, p.name)
		rowBytes += p.rowBytes
	}
	for name := range unused {
		return nil, fmt.Errorf("shape: the model has no input %q", name)
	}
	m.rows = max(m.LargestBatchSize, min(2*m.LargestBatchSize, spareBytes/rowBytes))
	if m.rows > maxInputBytes/rowBytes {
		return nil, fmt.Errorf("inputs of batch size %d take %d bytes, want at most %d",
			m.LargestBatchSize, m.rows*rowBytes, maxInputBytes)
	}
	r := rand.New(rand.NewPCG(o.Seed, 3))
	second := 1
	if m.batchless {
		second = 2
	}
	for i := range m.inputs {
		m.inputs[i].fill(m.rows, second, properties.IDBounds[m.inputs[i].name], r)
	}
	return m, nil
}

// addInput adds an input by its description, without values.
// given is the shape that a user wants; nil: any.
func (m *TargetModel) addInput(d *inference.ModelMetadataResponse_TensorMetadata,
	given []int64) (*input, error) {
	in := input{name: d.GetName(), dataType: tensor.DataType(d.GetDatatype())}
	size := in.dataType.Size()
	if in.dataType == tensor.Bytes {
		size = 4 + wordLetters
		m.Notes = append(m.Notes,
			fmt.Sprintf("input %q: sending random words of %d letters", in.name,
				wordLetters))
	}
	if size == 0 {
		return nil, fmt.Errorf("input %q: cannot make elements of type %q", in.name,
			d.GetDatatype())
	}
	in.scalar = len(d.GetShape()) == 0
	if in.shape = slices.Clone(d.GetShape()); !m.batchless && !in.scalar {
		in.shape = in.shape[1:]
	}
	if given != nil {
		if err := in.narrow(given, d.GetShape()); err != nil {
			return nil, err
		}
	}
	for i, n := range in.shape {
		if n < 0 {
			in.shape[i] = 1
			m.Notes = append(m.Notes,
				fmt.Sprintf("input %q: dimension %d is dynamic; sending 1 (--shape %[1]s:... sets it)",
					in.name, len(d.GetShape())-len(in.shape)+i))
		}
	}
	n, err := tensor.Elements(in.shape)
	if err != nil {
		return nil, fmt.Errorf("input %q: %w", in.name, err)
	}
	if n == 0 || n > maxInputBytes/size {
		return nil, fmt.Errorf("input %q: shape %v has %d elements a row", in.name, d.GetShape(), n)
	}
	in.rowBytes = n * size
	m.inputs = append(m.inputs, in)
	return &m.inputs[len(m.inputs)-1], nil
}

// narrow gives the input the sizes of a shape where the model leaves them open.
func (in *input) narrow(given, model []int64) error {
	wrong := fmt.Errorf("shape: input %q has %v in the model, and %v cannot be that", in.name,
		model,
		given)
	if len(given) != len(model) {
		return wrong
	}
	if len(model) > len(in.shape) && given[0] != 1 {
		return fmt.Errorf("shape: the first dimension of input %q, %d, is the batch size, which has a "+
			"flag of its own; want 1", in.name, given[0])
	}
	given = given[len(model)-len(in.shape):] // without the batch size
	for i, n := range in.shape {
		if n >= 0 && n != given[i] {
			return wrong
		}
	}
	in.shape = slices.Clone(given)
	return nil
}

// wordLetters is how many letters a random string has.
const wordLetters = 8

// fill makes rows rows of random values: floats from a standard normal distribution, ids uniform
// within their bounds, other integers 0, strings of random letters.
func (in *input) fill(rows, second int, bounds []int64, r *rand.Rand) {
	in.data = make([]byte, rows*in.rowBytes)
	size := in.dataType.Size()
	if in.dataType == tensor.Bytes {
		size = 4 + wordLetters
	}
	perRow := in.rowBytes / size
	// Bounds are per position of the second dimension, behind which are those from second on; all
	// elements below one position have its bound.
	perBound := 1
	for _, n := range in.shape[min(second, len(in.shape)):] {
		perBound *= int(n)
	}
	for i := range rows * perRow {
		element := in.data[i*size : (i+1)*size]
		switch in.dataType {
		case tensor.FP32:
			binary.LittleEndian.PutUint32(element, math.Float32bits(float32(r.NormFloat64())))
		case tensor.FP64:
			binary.LittleEndian.PutUint64(element, math.Float64bits(r.NormFloat64()))
		case tensor.FP16, tensor.BF16:
			half, _ := tensor.HalfOf(in.dataType, r.NormFloat64())
			binary.LittleEndian.PutUint16(element, half)
		case tensor.Bytes:
			binary.LittleEndian.PutUint32(element, wordLetters)
			for k := range element[4:] {
				element[4+k] = 'a' + byte(r.IntN(26))
			}
		case tensor.Bool:
			element[0] = byte(r.IntN(2))
		default:
			if len(bounds) == 0 {
				continue
			}
			bound := bounds[0]
			if len(bounds) > 1 {
				bound = bounds[i%perRow/perBound%len(bounds)]
			}
			bound = min(bound, 1<<(8*size-1)-1)
			var id [8]byte
			binary.LittleEndian.PutUint64(id[:], uint64(r.Int64N(bound)))
			copy(element, id[:])
		}
	}
}

// makeRequest makes the request of a query, of which there are inputs, and says which of the
// model's rows is its first.
func (m *TargetModel) makeRequest(q workload.Query, r *rand.Rand) (req *oip.Request, from int) {
	switch {
	case m.recorded != nil:
		return &oip.Request{Model: m.Name, LeastAccuracy: m.LeastAccuracy,
			Inputs: slices.Clone(m.recorded[q.Number].Inputs)}, 0
	case m.queries != nil:
		return m.makeQuery(q.BatchSize, r), 0
	}
	from = r.IntN(m.rows - q.BatchSize + 1)
	return m.rowsFrom(from, q.BatchSize), from
}

// rowsFrom makes a query of some of the model's rows.
func (m *TargetModel) rowsFrom(from, batchSize int) *oip.Request {
	req := &oip.Request{Model: m.Name, LeastAccuracy: m.LeastAccuracy,
		Inputs: make([]tensor.Tensor, len(m.inputs))}
	for i := range m.inputs {
		in := &m.inputs[i]
		shape := in.shape
		if !m.batchless && !in.scalar {
			shape = append([]int64{int64(batchSize)}, in.shape...)
		}
		req.Inputs[i] = tensor.Tensor{
			Name:     in.name,
			DataType: in.dataType,
			Shape:    shape,
			Data:     in.rowsFrom(from, batchSize),
		}
	}
	return req
}
