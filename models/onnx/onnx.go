package onnx

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/tensor"
)

// Dynamic is the value, in a shape, of a dimension whose size the model does not fix.
const Dynamic = -1

// A ValueDescription is an input or an output of a model.
type ValueDescription struct {
	Name     string
	DataType tensor.DataType
	// Shape is the size of each dimension, or Dynamic. It is empty, not nil, for a scalar, and nil
	// if the model does not declare it.
	Shape []int64
	// Dims are the names that the file gives the dimensions (dim_param), as many as Shape has:
	// equal names mean equal sizes. A dimension without a name has "". Nil if none has a name.
	Dims []string
	// Labels name the columns of an output that the file declares as a sequence of maps, from a
	// label to its value: the tensor of the values takes its place. Nil for any other port.
	Labels []string
}

// Field numbers of onnx.proto.
const (
	modelIRVersion       protowire.Number = 1
	modelProducerName    protowire.Number = 2
	modelProducerVersion protowire.Number = 3
	modelGraph           protowire.Number = 7
	modelOpsetImport     protowire.Number = 8
	modelFunctions       protowire.Number = 25

	functionNode      protowire.Number = 7
	functionAttribute protowire.Number = 11 // with its default value

	opsetDomain  protowire.Number = 1
	opsetVersion protowire.Number = 2

	graphNode              protowire.Number = 1
	graphName              protowire.Number = 2
	graphInitializer       protowire.Number = 5
	graphInput             protowire.Number = 11
	graphOutput            protowire.Number = 12
	graphValueInfo         protowire.Number = 13
	graphSparseInitializer protowire.Number = 15

	sparseValues  protowire.Number = 1
	sparseIndices protowire.Number = 2

	nodeInput     protowire.Number = 1
	nodeOutput    protowire.Number = 2
	nodeName      protowire.Number = 3
	nodeOpType    protowire.Number = 4
	nodeAttribute protowire.Number = 5
	nodeDomain    protowire.Number = 7

	attributeName          protowire.Number = 1
	attributeFloat         protowire.Number = 2
	attributeInt           protowire.Number = 3
	attributeString        protowire.Number = 4
	attributeTensor        protowire.Number = 5
	attributeGraph         protowire.Number = 6
	attributeInts          protowire.Number = 8
	attributeStrings       protowire.Number = 9
	attributeTensors       protowire.Number = 10
	attributeGraphs        protowire.Number = 11
	attributeType          protowire.Number = 20
	attributeSparse        protowire.Number = 22
	attributeSparseTensors protowire.Number = 23

	tensorDims         protowire.Number = 1
	tensorDataType     protowire.Number = 2
	tensorFloatData    protowire.Number = 4
	tensorInt32Data    protowire.Number = 5
	tensorInt64Data    protowire.Number = 7
	tensorName         protowire.Number = 8
	tensorRawData      protowire.Number = 9
	tensorExternalData protowire.Number = 13
	tensorDataLocation protowire.Number = 14

	entryKey   protowire.Number = 1
	entryValue protowire.Number = 2

	valueName protowire.Number = 1
	valueType protowire.Number = 2

	typeTensor       protowire.Number = 1
	typeSequence     protowire.Number = 4
	typeMap          protowire.Number = 5
	typeSparseTensor protowire.Number = 8
	typeOptional     protowire.Number = 9

	tensorTypeElement protowire.Number = 1
	tensorTypeShape   protowire.Number = 2

	shapeDim protowire.Number = 1

	dimValue protowire.Number = 1
	dimParam protowire.Number = 2
)

// Values of TensorProto.DataLocation.
const (
	locationDefault  = 0
	locationExternal = 1
)

// isExternal returns whether a TensorProto's elements are in another file, after a field
// data_location of value v; before is what was known so far. Protobuf reads an enum as 32 bits of
// the number, and ignores a value that it does not know.
func isExternal(before bool, v uint64) bool {
	switch int32(v) {
	case locationDefault:
		return false
	case locationExternal:
		return true
	}
	return before
}

// elementTypes maps values of TensorProto.DataType to data types of the Open Inference Protocol. It
// lacks those for which the protocol has no name.
var elementTypes = map[uint64]tensor.DataType{
	1:  tensor.FP32,
	2:  tensor.Uint8,
	3:  tensor.Int8,
	4:  tensor.Uint16,
	5:  tensor.Int16,
	6:  tensor.Int32,
	7:  tensor.Int64,
	8:  tensor.Bytes,
	9:  tensor.Bool,
	10: tensor.FP16,
	11: tensor.FP64,
	12: tensor.Uint32,
	13: tensor.Uint64,
	16: tensor.BF16,
}

// elementNumber returns the TensorProto.DataType of a data type. It panics if there is none.
func elementNumber(d tensor.DataType) uint64 {
	for number, t := range elementTypes {
		if t == d {
			return number
		}
	}
	panic(fmt.Sprintf("onnx: no element type %q", d))
}
