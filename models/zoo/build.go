package zoo

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"strings"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
)

// The models' inputs: dense features [N, features], and the ids of all tables
// packed into one tensor, [N, tables] or [N, tables, lookups].
const (
	denseInput = "dense"
	idsInput   = "ids"
)

// A builder puts a model's graph together and lays out its weights.
type builder struct {
	name  string
	scale *big.Rat
	seed  uint64

	model   onnx.Model
	weights []weight
	size    int64 // of the data file so far
	tables  []models.EmbeddingTable
	bounds  map[string][]int64 // of ids, by input
	// named counts the nodes by name, without the number that makes a name unique.
	named     map[string]int
	constants map[string]bool
}

func newBuilder(name string, scale *big.Rat, seed uint64) *builder {
	return &builder{
		name:      name,
		scale:     scale,
		seed:      seed,
		model:     onnx.Model{Name: name, Producer: "muster", ProducerVersion: generator},
		bounds:    map[string][]int64{},
		named:     map[string]int{},
		constants: map[string]bool{},
	}
}

// addInput declares an input of the graph; shape is without the batch size.
func (b *builder) addInput(name string, t tensor.DataType, shape ...int64) string {
	b.model.Inputs = append(b.model.Inputs, onnx.ValueDescription{
		Name: name, DataType: t, Shape: append([]int64{onnx.Dynamic}, shape...),
	})
	return name
}

// addOutput makes the result of the last node, [N, size], an output of the graph with the given
// name.
func (b *builder) addOutput(name string, size int64) {
	b.model.Nodes[len(b.model.Nodes)-1].Outputs[0] = name
	b.model.Outputs = append(b.model.Outputs, onnx.ValueDescription{
		Name: name, DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, size},
	})
}

// addNode adds a node with one result and returns the result's name. name says which part of the
// model the node belongs to.
func (b *builder) addNode(op, name string, inputs []string, attributes ...onnx.Attribute) string {
	return b.addNodes(op, name, 1, inputs, attributes...)[0]
}

// addNodes adds a node with several results and returns their names.
func (b *builder) addNodes(op, name string, results int, inputs []string,
	attributes ...onnx.Attribute) []string {
	name += "/" + op
	b.named[name]++
	if n := b.named[name]; n > 1 {
		name = fmt.Sprintf("%s_%d", name, n)
	}
	n := onnx.Node{Op: op, Name: name, Inputs: inputs, Attributes: attributes}
	for i := range results {
		n.Outputs = append(n.Outputs, fmt.Sprintf("%s:%d", name, i))
	}
	b.model.Nodes = append(b.model.Nodes, n)
	return n.Outputs
}

// addConstant adds a list of numbers to the graph and returns its name. A second call with the
// same name adds nothing.
func (b *builder) addConstant(name string, values ...int64) string {
	return b.addInts(name, []int64{int64(len(values))}, values...)
}

// addScalar is addConstant of a number.
func (b *builder) addScalar(name string, value int64) string {
	return b.addInts(name, []int64{}, value)
}

func (b *builder) addInts(name string, shape []int64, values ...int64) string {
	if b.constants[name] {
		return name
	}
	b.constants[name] = true
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint64(data, uint64(v))
	}
	b.model.Initializers = append(b.model.Initializers, onnx.Initializer{
		Name: name, DataType: tensor.Int64, Shape: shape, Data: data,
	})
	return name
}

// addWeight adds a tensor to the data file, with elements uniform in mean ± spread, and returns its
// name.
func (b *builder) addWeight(name string, mean, spread float64, shape ...int64) string {
	w := weight{
		name:   name,
		shape:  shape,
		offset: (b.size + alignment - 1) / alignment * alignment,
		key:    weightKey(b.name, name, b.seed),
		mean:   mean,
		spread: spread,
	}
	length := 4 * w.countElements()
	b.size = w.offset + length
	b.weights = append(b.weights, w)
	b.model.Initializers = append(b.model.Initializers, onnx.Initializer{
		Name:     name,
		DataType: tensor.FP32,
		Shape:    shape,
		External: onnx.External{Location: dataFile, Offset: w.offset, Length: length},
	})
	return name
}

// uniformSpread returns half the width of a uniform distribution with the given variance.
func uniformSpread(variance float64) float64 { return math.Sqrt(3 * variance) }

// addIDs declares the packed input of ids and splits it by table, into [N, 1] for
// one lookup or [N, 1, lookups].
func (b *builder) addIDs(tables int, lookups int64) []string {
	shape := []int64{int64(tables)}
	if lookups > 1 {
		shape = append(shape, lookups)
	}
	ids := b.addInput(idsInput, tensor.Int64, shape...)
	return b.addNodes("Split", idsInput, tables, []string{ids}, axisAttribute(1))
}

// addTable adds the next embedding table, of fullRows rows at full scale, and looks
// up its ids. It returns [N, 1, dim], the sum over the lookups, which has unit
// variance.
func (b *builder) addTable(name string, ids []string, fullRows, dim, lookups int64) string {
	return b.addLookup(name, idsInput, ids[len(b.tables)], fullRows, dim, lookups)
}

// addLookup adds an embedding table, of fullRows rows at full scale, and looks up ids, which are a
// part of an input. It returns [..., dim], the sum over the lookups, if there are several, which
// has unit variance.
func (b *builder) addLookup(name, input, ids string, fullRows, dim, lookups int64) string {
	t := models.EmbeddingTable{Name: name, Rows: scaleRows(fullRows, b.scale), Dim: dim,
		Lookups: lookups}
	b.tables = append(b.tables, t)
	b.bounds[input] = append(b.bounds[input], t.Rows)
	w := b.addWeight(name, 0, uniformSpread(1/float64(lookups)), t.Rows, dim)
	found := b.addNode("Gather", name, []string{w, ids}, axisAttribute(0))
	if lookups == 1 {
		return found
	}
	return b.addNode("ReduceSum", name, []string{found, b.addConstant("axes_2", 2)}, onnx.Attribute{
		Name: "keepdims", Value: int64(0),
	})
}

func axisAttribute(i int64) onnx.Attribute { return onnx.Attribute{Name: "axis", Value: i} }

// addReshape gives x another shape; a 0 in it stands for the batch size.
func (b *builder) addReshape(name, x string, shape ...int64) string {
	return b.addNode("Reshape", name, []string{
		x, b.addConstant("shape"+strings.ReplaceAll(fmt.Sprint(shape), " ", "_"), shape...),
	})
}

// addRowReshape reshapes x from [N, width] to [N, 1, width], the shape that table returns.
func (b *builder) addRowReshape(name, x string, width int64) string {
	return b.addReshape(name, x, 0, 1, width)
}

// addConcat concatenates rows [N, 1, ...] to [N, width].
func (b *builder) addConcat(name string, width int64, rows ...string) string {
	return b.addReshape(name, b.addNode("Concat", name, rows, axisAttribute(2)), 0, width)
}

// addGemm multiplies x [N, in] by the transposed weight [out, in] and adds bias.
func (b *builder) addGemm(name, x, weight, bias string) string {
	return b.addNode("Gemm", name, []string{x, weight, bias}, onnx.Attribute{
		Name: "transB", Value: int64(1),
	})
}

// smallBias is the spread of biases.
const smallBias = 0.1

// addFullyConnected adds a fully connected layer: xW^T + b and then the activation, such as "Relu".
// The variance of W follows He's rule, 2 / inputs.
func (b *builder) addFullyConnected(name, x string, in, out int64, activation string,
	attributes ...onnx.Attribute) string {
	w := b.addWeight(name+".weight", 0, uniformSpread(2/float64(in)), out, in)
	bias := b.addWeight(name+".bias", 0, smallBias, out)
	return b.addNode(activation, name, []string{b.addGemm(name, x, w, bias)}, attributes...)
}

// addMLP adds a stack of fully connected layers. sizes are the width of x and then of each layer.
// The activation of the last layer is last, that of the others ReLU.
func (b *builder) addMLP(name, x, last string, sizes ...int64) string {
	for i := range len(sizes) - 1 {
		activation := "Relu"
		if i == len(sizes)-2 {
			activation = last
		}
		x = b.addFullyConnected(fmt.Sprintf("%s_%d", name, i), x, sizes[i], sizes[i+1], activation)
	}
	return x
}
