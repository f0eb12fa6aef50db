package serve

import (
	"math"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// minLimit is the message size, in bytes, that every agent accepts, whatever its models. The
// messages between agents must not exceed it. Chosen: the longest of these, a leader's with
// releases, prices and a placement, has some 640 KiB, and 256 messages of this size fit into the
// default --max-waiting-bytes.
const minLimit = 1 << 20

// envelope is how many bytes a query may have in addition to its tensors' elements. Chosen: names,
// shapes and parameters of a query take below 1 KiB, those of a hundred inputs with long names some
// 10 KiB.
const envelope = 64 << 10

// The most bytes that an element of a tensor takes on the wire.
const (
	protobufElement = 10 // a negative integer as varint
	jsonElement     = 26 // a float64 with sign, exponent and comma
)

// largestQuery returns the largest size, in bytes, of a query of a model with these inputs, on a
// wire with up to perElement bytes an element. The largest batch size determines it. It is limit if
// the inputs have other free dimensions or strings, or if it would exceed limit. free is
// whether the first dimension is no batch size.
func largestQuery(inputs []models.TensorSpec, largestBatchSize int, free bool, perElement,
	limit int64) int64 {
	total := int64(envelope)
	for _, p := range inputs {
		elements, row := int64(largestBatchSize), p.Shape[min(1, len(p.Shape)):]
		if free {
			elements, row = 1, p.Shape
		}
		for _, d := range row {
			if d == models.Dynamic || d > 0 && elements > limit/d {
				return limit
			}
			elements *= d
		}
		if p.DataType == tensor.Bytes || elements > limit/perElement {
			return limit
		}
		total += elements * perElement
	}
	return min(total, limit)
}

// allowLargest raises the gRPC server's limit on a query's size to that of a model with these
// inputs.
func (s *Server) allowLargest(inputs []models.TensorSpec, largestBatchSize int, free bool) {
	n := largestQuery(inputs, largestBatchSize, free, protobufElement,
		min(s.config.MaxWaitingBytes, math.MaxInt32))
	for {
		largest := s.largest.Load()
		if n <= largest || s.largest.CompareAndSwap(largest, n) {
			return
		}
	}
}
