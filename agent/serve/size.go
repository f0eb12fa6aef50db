package serve

import (
	"math"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// leastLimit is the size of a message that every agent accepts, whatever its models: what
// agents tell each other has its room in it.
const leastLimit = 1 << 20

// envelope is what a query may have beside its tensors' elements, in bytes.
const envelope = 64 << 10

// What an element of a tensor may take on the wire, in bytes.
const (
	protobufElement = 10 // a negative integer as varint
	jsonElement     = 26 // a float64 with sign, exponent and comma
)

// largestQuery is how many bytes a query of a model with such inputs may have on
// a wire that takes up to perElement bytes an element: it follows from the largest batch.
// Where a query may choose other dimensions too, or sends strings, or would
// need more, it is limit.
func largestQuery(inputs []models.Port, largestBatchSize int, perElement, limit int64) int64 {
	total := int64(envelope)
	for _, p := range inputs {
		elements := int64(largestBatchSize)
		for _, d := range p.Shape[min(1, len(p.Shape)):] {
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

// allowLargest has queries accepted by gRPC that are as large as a model with such inputs allows
// them to be.
func (s *Server) allowLargest(inputs []models.Port, largestBatchSize int) {
	n := largestQuery(inputs, largestBatchSize, protobufElement,
		min(s.config.MaxWaitingBytes, math.MaxInt32))
	for {
		largest := s.largest.Load()
		if n <= largest || s.largest.CompareAndSwap(largest, n) {
			return
		}
	}
}
