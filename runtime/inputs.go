package runtime

import (
	"fmt"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// largestTensor bounds the bytes of a tensor that this package allocates. An absurd shape then
// gives an error instead of running the process out of memory.
const largestTensor = 2 << 30

// checkInputs checks that the inputs have the ports' data types and one batch size, except those
// that belong to the query as a whole, and that their data has the length of their shapes, so that
// ONNX Runtime reads nothing beyond it. It returns the batch size, which is 1 without a batch.
func checkInputs(ports []models.TensorSpec, inputs []tensor.Tensor, batchless bool) (batch int,
	err error) {
	if len(inputs) != len(ports) {
		return 0, fmt.Errorf("got %d inputs, want %d", len(inputs), len(ports))
	}
	first := -1 // the input that says the batch size
	for i, in := range inputs {
		want := &ports[i]
		if want.Optional && in.DataType == "" {
			continue
		}
		if in.DataType != want.DataType {
			return 0, fmt.Errorf("input %q is %s, want %s", want.Name, in.DataType, want.DataType)
		}
		if (len(in.Shape) == 0) != want.IsScalar() {
			return 0, fmt.Errorf("input %q has shape %v, want %v", want.Name, in.Shape, want.Shape)
		}
		n, err := tensor.Elements(in.Shape)
		if err != nil {
			return 0, fmt.Errorf("input %q: %w", want.Name, err)
		}
		if size := in.DataType.Size(); size > 0 && (len(in.Data)%size != 0 ||
			len(in.Data)/size != n) {
			return 0, fmt.Errorf("input %q has %d bytes, want shape %v of %s", want.Name,
				len(in.Data), in.Shape, in.DataType)
		}
		switch {
		case batchless:
			batch = 1
		case !want.HasRows():
		case first < 0:
			batch, first = int(in.Shape[0]), i
		case int(in.Shape[0]) != batch:
			return 0, fmt.Errorf("input %q has batch size %d, input %q has %d", want.Name,
				in.Shape[0], ports[first].Name, batch)
		}
	}
	return batch, nil
}
