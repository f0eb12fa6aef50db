package variants

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

const (
	// minOpset is the version of the standard operators that has MatMulInteger and
	// QuantizeLinear.
	minOpset = 10
	// minWidth is the number of inputs and outputs from which a layer is quantised. In a narrower
	// one, to quantise the inputs takes longer than the product.
	minWidth = 8
	// largestWeight bounds quantised weights. The sum of two products of a weight and an input,
	// which is at most 255, then fits into 16 bits. Processors without VNNI instructions clip
	// larger sums, so that with 8 bits the answers would depend on the instance: on an emulated
	// Haswell those of WND's layers are off by .046, with 7 bits by the same .0039 as elsewhere.
	largestWeight = 64
)

// int8Layers computes MatMul and Gemm nodes with constant FP32 weights in 8-bit integers. Weights
// have a scale for each output. Inputs have a scale for each row, found when the model runs. With
// one scale for all rows, as DynamicQuantizeLinear has it, an item's answer would depend on the
// other items of its batch.
func int8Layers(g *onnx.Graph) (Report, error) {
	if g.Signature.Opset < minOpset {
		return Report{}, fmt.Errorf(
			"the model has version %d of the standard operators, int8 needs at "+
				"least %d; export it again", g.Signature.Opset, minOpset)
	}
	q := &quantiser{graph: g, producers: producersOf(g), inputs: map[string]quantisedInput{},
		weights: map[string][2]string{}}
	var nodes []onnx.Node
	var report Report
	for _, n := range g.Nodes {
		l, ok := layerOf(g, n)
		if !ok {
			nodes = append(nodes, n)
			continue
		}
		why, err := q.quantiseLayer(l)
		if err != nil {
			return Report{}, err
		}
		if why != "" {
			report.Left = append(report.Left, describeNode(n, why))
			nodes = append(nodes, n)
			continue
		}
		report.Changed++
		nodes, q.nodes = append(nodes, q.nodes...), nil
	}
	g.Nodes = nodes
	return report, nil
}

// A layer is a product of a value and a constant matrix: alpha * x W + beta * bias, where W is
// weight, or its transpose.
type layer struct {
	node       onnx.Node
	x, bias    string // bias is empty for a layer without one
	weight     onnx.Initializer
	transposed bool
	in, out    int
	alpha      float32
	why        string // why the node cannot be changed
}

// layerOf returns the layer that n computes; false if it computes none.
func layerOf(g *onnx.Graph, n onnx.Node) (layer, bool) {
	if !n.Standard() || (n.Op != "MatMul" && n.Op != "Gemm") || len(n.Inputs) < 2 ||
		len(n.Outputs) != 1 {
		return layer{}, false
	}
	w, ok := g.Constant(n.Inputs[1])
	if !ok || w.DataType != tensor.FP32 || len(w.Shape) != 2 {
		return layer{}, false
	}
	l := layer{node: n, x: n.Inputs[0], weight: w, alpha: 1}
	if n.Op == "Gemm" {
		if len(n.Inputs) > 2 {
			l.bias = n.Inputs[2]
		}
		if v, ok := n.Attribute("alpha").(float32); ok {
			l.alpha = v
		}
		if v, ok := n.Attribute("beta").(float32); ok && v != 1 && l.bias != "" {
			l.why = fmt.Sprintf("its beta is %v", v)
		}
		if v, _ := n.Attribute("transA").(int64); v != 0 {
			l.why = "its input is transposed"
		}
		v, _ := n.Attribute("transB").(int64)
		l.transposed = v != 0
	}
	l.in, l.out = int(w.Shape[0]), int(w.Shape[1])
	if l.transposed {
		l.in, l.out = l.out, l.in
	}
	return l, true
}

// weightMatrix returns the layer's weights as rows of inputs, [in, out].
func (l layer) weightMatrix(g *onnx.Graph) ([]float32, error) {
	values, err := g.Floats(l.weight)
	if err != nil || !l.transposed {
		return values, err
	}
	m := make([]float32, len(values))
	for o := range l.out {
		for i := range l.in {
			m[i*l.out+o] = values[o*l.in+i]
		}
	}
	return m, nil
}

// producersOf returns the node that computes each value.
func producersOf(g *onnx.Graph) map[string]onnx.Node {
	all := map[string]onnx.Node{}
	for _, n := range g.Nodes {
		for _, output := range n.Outputs {
			all[output] = n
		}
	}
	return all
}

// A quantiser collects the nodes that replace layers.
type quantiser struct {
	graph     *onnx.Graph
	producers map[string]onnx.Node
	nodes     []onnx.Node
	inputs    map[string]quantisedInput // by the value that is quantised
	weights   map[string][2]string      // by weight: the quantised one, and its scales
}

// quantisedInput is a quantised value: value = (integers - zero) * scale.
type quantisedInput struct{ integers, scale, zero string }

// quantiseLayer adds the nodes of a layer, or returns why it does not.
func (q *quantiser) quantiseLayer(l layer) (why string, err error) {
	switch {
	case l.why != "":
		return l.why, nil
	case l.in < minWidth || l.out < minWidth:
		return fmt.Sprintf("its %d x %d weights are too few to gain", l.in, l.out), nil
	}
	weight, scales, err := q.quantiseWeight(l)
	if err != nil {
		return "", err
	}
	output := l.node.Outputs[0]
	x := q.quantiseInput(l.x)
	sum := q.addNode("MatMulInteger", output, x.integers, weight, x.zero)
	sum = q.addNode("Cast", output, sum)
	q.nodes[len(q.nodes)-1].Attributes = []onnx.Attribute{toFloat}
	sum = q.addNode("Mul", output, sum, x.scale)
	sum = q.addNode("Mul", output, sum, scales)
	if l.bias != "" {
		q.addNode("Add", output, sum, l.bias)
	}
	q.nodes[len(q.nodes)-1].Outputs[0] = output
	return "", nil
}

// addNode adds a node for the value base and returns the name of its result.
func (q *quantiser) addNode(op, base string, inputs ...string) string {
	return add(q.graph, &q.nodes, op, base, inputs)
}

// add appends a node that is part of what computes the value base. It returns the name
// of the node's result.
func add(g *onnx.Graph, nodes *[]onnx.Node, op, base string, inputs []string,
	attributes ...onnx.Attribute) string {
	name := g.Fresh(base + "/" + op)
	result := g.Fresh(name + ":0")
	*nodes = append(*nodes, onnx.Node{
		Op: op, Name: name, Inputs: inputs, Outputs: []string{result}, Attributes: attributes,
	})
	return result
}

// quantiseInput adds the nodes that quantise the rows of x, once for all layers that take it.
func (q *quantiser) quantiseInput(x string) quantisedInput {
	if have, ok := q.inputs[x]; ok {
		return have
	}
	// Inputs that are never negative use all 8 bits; others have 0 in the middle.
	largest, zero, of := float32(127), byte(128), x
	switch p := q.producers[x]; {
	case p.Standard() && (p.Op == "Relu" || p.Op == "Sigmoid" || p.Op == "Softmax"):
		largest, zero = 255, 0
	default:
		of = q.addNode("Abs", x, x)
	}
	rowMax := q.addNode("ReduceMax", x, of)
	n := &q.nodes[len(q.nodes)-1]
	n.Attributes = []onnx.Attribute{{Name: "keepdims", Value: int64(1)}}
	if q.graph.Signature.Opset < 18 {
		n.Attributes = append(n.Attributes, onnx.Attribute{Name: "axes", Value: []int64{-1}})
	} else {
		n.Inputs = append(n.Inputs, q.addConstant("int8/axes", tensor.Int64, []int64{1},
			binary.LittleEndian.AppendUint64(nil, math.MaxUint64))) // -1
	}
	// A row of zeros must not be divided by 0.
	scale := q.addNode("Max", x, rowMax, q.addFloat("int8/smallest", 1e-30))
	scale = q.addNode("Mul", x, scale, q.addFloat(fmt.Sprintf("int8/per_%v", largest), 1/largest))
	s := quantisedInput{scale: scale, zero: q.addConstant(fmt.Sprintf("int8/zero_%d", zero),
		tensor.Uint8,
		[]int64{}, []byte{zero})}
	s.integers = q.addNode("QuantizeLinear", x, q.addNode("Div", x, x, scale),
		q.addFloat("int8/one", 1),
		s.zero)
	q.inputs[x] = s
	return s
}

func (q *quantiser) addFloat(name string, v float32) string {
	return q.addConstant(name, tensor.FP32, []int64{},
		binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
}

// addConstant adds a constant to the graph once, and returns its name.
func (q *quantiser) addConstant(name string, t tensor.DataType, shape []int64, data []byte) string {
	if _, ok := q.graph.Constant(name); !ok {
		q.graph.Add(onnx.Initializer{Name: name, DataType: t, Shape: shape, Data: data})
	}
	return name
}

// quantiseWeight adds the quantised weights of a layer, [in, out], and their scales, [out], to the
// graph, once for all layers that share them.
func (q *quantiser) quantiseWeight(l layer) (weight, scales string, err error) {
	key := fmt.Sprint(l.weight.Name, l.transposed, l.alpha)
	if have, ok := q.weights[key]; ok {
		return have[0], have[1], nil
	}
	m, err := l.weightMatrix(q.graph)
	if err != nil {
		return "", "", err
	}
	perOutput := make([]float32, l.out)
	for i, w := range m {
		perOutput[i%l.out] = max(perOutput[i%l.out], abs32(w)) // NaN if w is
	}
	var scaled []byte
	for o, most := range perOutput {
		if math.IsNaN(float64(most)) || math.IsInf(float64(most), 0) {
			return "", "", fmt.Errorf("tensor %q holds a weight that is %v", l.weight.Name, most)
		}
		perOutput[o] = most / largestWeight
		scaled = binary.LittleEndian.AppendUint32(scaled, math.Float32bits(perOutput[o]*l.alpha))
	}
	integers := make([]byte, len(m))
	for i, w := range m {
		integers[i] = byte(int8(nearestMultiple(w, perOutput[i%l.out])))
	}
	weight = q.graph.Fresh(l.weight.Name + "/int8")
	scales = q.graph.Fresh(l.weight.Name + "/scale")
	q.graph.Add(onnx.Initializer{Name: weight, DataType: tensor.Int8,
		Shape: []int64{int64(l.in), int64(l.out)}, Data: integers})
	q.graph.Add(onnx.Initializer{Name: scales, DataType: tensor.FP32, Shape: []int64{int64(l.out)},
		Data: scaled})
	q.weights[key] = [2]string{weight, scales}
	return weight, scales, nil
}

func abs32(v float32) float32 { return float32(math.Abs(float64(v))) }

// nearestMultiple returns the whole number of scales that is nearest to v; 0 if scale is 0.
func nearestMultiple(v, scale float32) int {
	if scale == 0 {
		return 0
	}
	return int(math.RoundToEven(float64(v / scale)))
}
