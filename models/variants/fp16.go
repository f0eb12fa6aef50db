package variants

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

var (
	// halfOperators have kernels for FP16 in ONNX Runtime's CUDA provider (its OperatorKernels.md),
	// and results of the type of what they take. Those that add up, such as MatMul, ReduceSum and
	// Softmax, do it in FP32 there and round once. So no part of a model needs to stay in FP32, and
	// the rows of a bag are not written out in 32 bits only to be added.
	halfOperators = strings.Fields(`Abs Add AveragePool BatchNormalization Cast Ceil Clip Concat
		Conv Cos Div Dropout Einsum Elu Erf Exp Expand Flatten Floor GRU Gather GatherElements
		GatherND Gemm GlobalAveragePool HardSigmoid Identity LSTM LayerNormalization LeakyRelu Log
		LogSoftmax MatMul Max MaxPool Min Mul Neg OneHot PRelu Pad Pow RNN Reciprocal ReduceL1
		ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
		ReduceSumSquare Relu Reshape Round ScatterElements ScatterND Selu Sigmoid Sign Sin Slice
		Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Tanh Tile TopK Transpose Unsqueeze
		Where`)
	// halfQuestions take FP16 as well, and answer in another type.
	halfQuestions = strings.Fields(`Equal Greater GreaterOrEqual Less LessOrEqual NonZero Shape Size`)
	// halfFirst have a second result that is no number of what they take: indices, or a mask.
	halfFirst = strings.Fields(`Dropout MaxPool TopK`)
	// halfButStatistics have results of FP16, and beside them statistics of FP32:
	// LayerNormalization gives mean and deviation in the type of its stash_type, whatever it
	// normalizes.
	halfButStatistics = strings.Fields(`LayerNormalization`)
	// bodies hold graphs, which see values of the graph around them.
	bodies = strings.Fields(`If Loop Scan SequenceMap`)
)

// minLargest is what the largest value of a constant must have at least, unless it is 0: FP16 then
// keeps it within 3 %. The number that keeps a division from one by 0 is often smaller.
const minLargest = 0x1p-20

// fp16 stores constants of FP32 in FP16, and computes in FP16 between the model's inputs and
// outputs, which keep their types.
func fp16(g *onnx.Graph) (Report, error) {
	h := &halver{graph: g, halves: map[string]string{}, outputs: map[string]bool{},
		statistics: map[string]bool{}}
	for _, p := range g.Signature.Outputs {
		h.outputs[p.Name] = p.DataType == tensor.FP32
	}
	for _, p := range g.Signature.Inputs {
		if p.DataType == tensor.FP32 {
			h.castForAll(p.Name)
		}
	}
	for _, n := range g.Nodes {
		if err := h.addNode(n); err != nil {
			return Report{}, err
		}
	}
	g.Nodes = slices.Concat(h.nodes, h.last)
	g.Undeclare(tensor.FP32)
	return Report{Changed: h.constants}, nil
}

// A halver collects the nodes that replace those of a graph.
type halver struct {
	graph *onnx.Graph
	// halves holds the value of FP16 that stands for each of FP32; for a result that a node now
	// computes in FP16 itself. outputs are the model's of FP32.
	halves      map[string]string
	outputs     map[string]bool
	statistics  map[string]bool // values that stay FP32, and are cast for the first who takes them
	nodes, last []onnx.Node     // last are the nodes behind all others
	constants   int             // how many were stored in FP16
}

// toFloat and toHalf are the attributes of a Cast to FP32 and to FP16.
var (
	toFloat = onnx.Attribute{Name: "to", Value: int64(1)}
	toHalf  = onnx.Attribute{Name: "to", Value: int64(10)}
)

// wholeNumbers are the values of that attribute for integers of more than 8 bits, such as ids.
var wholeNumbers = []int64{4, 5, 6, 7, 12, 13}

// castForAll has a value of FP32 cast to FP16 for all who take it.
func (h *halver) castForAll(value string) {
	h.halves[value] = add(h.graph, &h.nodes, "Cast", value, []string{value}, toHalf)
}

// addNode adds a node, with values of FP16 where it had some of FP32.
func (h *halver) addNode(n onnx.Node) error {
	takes := false
	for i, name := range n.Inputs {
		half, err := h.halfOf(name)
		if err != nil {
			return err
		}
		if half != "" && half != name {
			n.SetInput(i, half)
		}
		takes = takes || half != ""
	}
	gives := takes && !slices.Contains(halfQuestions, n.Op)
	switch {
	case n.Standard() && slices.Contains(bodies, n.Op):
		return errors.New(describeNode(n, "fp16 does not change the graphs within nodes"))
	case takes && (!n.Standard() || gives && !slices.Contains(halfOperators, n.Op)):
		return errors.New(describeNode(n,
			"it computes with FP32, and is no operator that fp16 knows on a GPU"))
	case n.Standard() && n.Op == "Cast":
		to, _ := n.Attribute("to").(int64)
		if takes && slices.Contains(wholeNumbers, to) {
			return errors.New(describeNode(n,
				"it makes whole numbers of FP32, which FP16 does not hold above 2048"))
		}
		if n.Attribute("to") == toFloat.Value {
			n = onnx.Node{Op: n.Op, Name: n.Name, Inputs: n.Inputs, Outputs: n.Outputs,
				Attributes: []onnx.Attribute{toHalf}}
		}
		gives = n.Attribute("to") == toHalf.Value
	case !takes && makesFloats(n):
		h.nodes = append(h.nodes, n)
		h.castForAll(n.Outputs[0])
		return nil
	}
	for i, name := range n.Outputs {
		if !gives || name == "" || i > 0 && slices.Contains(halfFirst, n.Op) {
			continue
		}
		if i > 0 && slices.Contains(halfButStatistics, n.Op) {
			stash := n.Attribute("stash_type")
			h.statistics[name] = stash == nil || stash == toFloat.Value
			continue
		}
		h.halves[name] = name
		if h.outputs[name] {
			half := h.graph.Fresh(name + "/fp16")
			n.SetOutput(i, half)
			h.halves[name] = half
			add(h.graph, &h.last, "Cast", name, []string{half}, toFloat)
			h.last[len(h.last)-1].Outputs[0] = name
		}
	}
	h.nodes = append(h.nodes, n)
	return nil
}

// makesFloats reports whether a node makes values of FP32 out of none.
func makesFloats(n onnx.Node) bool {
	switch {
	case !n.Standard() || len(n.Outputs) != 1:
		return false
	case n.Op == "Constant": // a tensor is stored in FP16 where it is used
		return n.Attribute("value") == nil && slices.ContainsFunc(n.Attributes,
			func(a onnx.Attribute) bool { return strings.HasPrefix(a.Name, "value_float") })
	case n.Op == "ConstantOfShape":
		t, ok := n.Attribute("value").(onnx.Initializer)
		return !ok || t.DataType == tensor.FP32
	}
	return false
}

// halfOf returns the value of FP16 that stands for a value, "" if that is not of FP32.
func (h *halver) halfOf(name string) (string, error) {
	if h.statistics[name] {
		h.castForAll(name)
		delete(h.statistics, name)
	}
	if half, ok := h.halves[name]; ok {
		return half, nil
	}
	t, ok := h.graph.Constant(name)
	if !ok || t.DataType != tensor.FP32 {
		return "", nil
	}
	values, err := h.graph.Floats(t)
	if err != nil {
		return "", err
	}
	data, largest := make([]byte, 0, 2*len(values)), float32(0)
	for _, v := range values {
		element, ok := tensor.HalfOf(tensor.FP16, float64(v))
		if !ok {
			return "", fmt.Errorf("tensor %q holds %v, and FP16 at most 65504", name, v)
		}
		data = binary.LittleEndian.AppendUint16(data, element)
		largest = max(largest, abs32(v))
	}
	if largest > 0 && largest < minLargest {
		return "", fmt.Errorf("tensor %q holds at most %v, too little for FP16 to keep it", name,
			largest)
	}
	half := h.graph.Fresh(name + "/fp16")
	h.graph.Add(onnx.Initializer{Name: half, DataType: tensor.FP16, Shape: t.Shape, Data: data})
	h.halves[name] = half
	h.constants++
	return half, nil
}
