package onnx

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/tensor"
)

// A Signature holds a model's inputs, outputs and versions, as its file declares them.
type Signature struct {
	IRVersion int64 // version of the ONNX format
	// Producer is the tool that wrote the model; it may be empty.
	Producer string
	// Opset is the version of the standard operators. Domains holds the versions of other operators
	// by their domain.
	Opset   int64
	Domains map[string]int64
	// Inputs are the graph's inputs that are not initializers, Outputs its
	// outputs, both in the order of the file. An output that is a sequence of maps is the tensor of
	// their values (see Port.Labels), and Graph has it so.
	Inputs  []ValueDescription
	Outputs []ValueDescription
	// Defaults are the inputs that are initializers too: those that a run may leave out. Before IR
	// version 4 each initializer had to be an input.
	Defaults []ValueDescription
	// Without says of each other output why it cannot be served. A run need not ask for it.
	Without []string
	// Data lists the files that hold the model's external data.
	Data []DataFile
	// Bounds holds, by input of integers, how large its ids may be, as far as the graph looks them
	// up in tables of known sizes: value v at index i of the second dimension must satisfy
	// -Bounds[i] <= v < Bounds[i], since ONNX counts negative ids from the end, or may be any if
	// that is 0. A single bound holds for all indices. ONNX Runtime refuses other ids.
	Bounds map[string][]int64
	// Operators holds the names of the operators that the graph applies, without those of graphs
	// within nodes.
	Operators map[string]bool
	// Maps are the values of the graph that stand for sequences of maps and are tensors in Graph.
	Maps map[string]bool

	// steps and constants are the graph's; there are none of a graph with more than maxSteps.
	steps     []step
	constants map[string]constant
}

// A DataFile is a file with weights of a model, separate from its .onnx file.
type DataFile struct {
	// Location is the file's path relative to the model's folder, and within it.
	Location string
	// Size is the least number of bytes that the file must have.
	Size int64
}

// ReadSignature reads the signature of the model in the file at path. It reads neither weights nor
// external data. It is an error if
//
//   - the file is no ONNX model,
//   - an input, or every output, is no tensor, or the Open Inference Protocol lacks its data type,
//   - a file of external data is missing or too short.
//
// Errors name the path.
func ReadSignature(path string) (*Signature, error) {
	s, err := readFile(path)
	if err == nil {
		err = s.checkData(filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("read model %s: %w", path, err)
	}
	return s, nil
}

// BatchlessReason returns why the model has no batch dimension: the first dimension of one of its
// inputs, or of all outputs, has a fixed size, or no input has one. It returns "" otherwise. Beside
// an output with rows, another one may have something else: LightGBM's exporter declares a label
// for each row as [1].
func (s *Signature) BatchlessReason() string {
	why := func(role string, p *ValueDescription) string {
		return fmt.Sprintf("%s %q has shape %v with a fixed first dimension of %d; to "+
			"serve batches, export the model with it dynamic (torch.onnx.export: "+
			"dynamic_axes={%q: {0: \"batch\"}}, or dynamic_shapes)",
			role, p.Name, p.Shape, p.Shape[0], p.Name)
	}
	for i := range s.Inputs {
		if p := &s.Inputs[i]; p.FixesFirst() {
			return why("input", p)
		}
	}
	if !slices.ContainsFunc(s.Inputs, func(p ValueDescription) bool { return !p.IsScalar() }) {
		return "its inputs have no dimensions"
	}
	for i := range s.Outputs {
		if !s.Outputs[i].FixesFirst() {
			return ""
		}
	}
	return why("output", &s.Outputs[0])
}

// IsScalar reports whether the port has no dimensions, and so the same value for all items.
func (p *ValueDescription) IsScalar() bool { return p.Shape != nil && len(p.Shape) == 0 }

// FixesFirst reports whether the first dimension has a fixed size.
func (p *ValueDescription) FixesFirst() bool { return len(p.Shape) > 0 && p.Shape[0] != Dynamic }

func readFile(path string) (*Signature, error) {
	f, info, err := files.Open(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	if info.Size() == 0 {
		return nil, errors.New("the file is empty")
	}
	s, err := read(message{source: &source{r: f}, end: info.Size()})
	if err != nil {
		begin := make([]byte, 64)
		n, _ := f.ReadAt(begin, 0)
		if cure := foreign(begin[:n]); cure != "" {
			return nil, fmt.Errorf("not a valid ONNX model: %s", cure)
		}
	}
	return s, err
}

func withoutPath(err error) error {
	if p := (*os.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// checkData checks that the files of external data in dir exist and are long enough.
func (s *Signature) checkData(dir string) error {
	var errs []error
	for _, d := range s.Data {
		path := filepath.Join(dir, d.Location)
		info, err := os.Stat(path)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("external data %s: %w", path, withoutPath(err)))
		case !info.Mode().IsRegular():
			errs = append(errs, fmt.Errorf("external data %s: not a regular file", path))
		case info.Size() < d.Size:
			errs = append(errs,
				fmt.Errorf("external data %s: got %d bytes, the model needs %d", path, info.Size(),
					d.Size))
		}
	}
	return errors.Join(errs...)
}

// deepest is how many levels deep graphs may be nested.
const deepest = 64

// A reader collects the signature while it reads the file.
type reader struct {
	signature Signature
	constants map[string]constant // the initializers
	inputs    []value
	outputs   []value
	steps     []step
	nested    *[]string // where the names of values go that nested graphs use; nil: nowhere
}

// A value is a ValueInfoProto.
type value struct {
	name string
	kind string // the kind of a value that is no tensor, such as "map"; empty for a tensor
	// element is a TensorProto.DataType; 0 if the file gives no type.
	element  uint64
	hasShape bool
	shape    []int64
	dims     []string // the names of dimensions, as in Port; nil: none has one
}

func read(m message) (*Signature, error) {
	r := reader{constants: map[string]constant{}}
	graphs := 0
	err := m.eachField(func(f field) error {
		var err error
		switch f.number {
		case modelIRVersion:
			r.signature.IRVersion, err = f.readInteger()
		case modelProducerName:
			r.signature.Producer, err = f.readText()
		case modelOpsetImport:
			err = r.readOpset(f)
		case modelGraph:
			graphs++
			err = r.readGraph(f, 0)
		case modelFunctions:
			err = r.readFunction(f)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("not a valid ONNX model: %w", err)
	}
	if graphs != 1 {
		return nil, fmt.Errorf("not a valid ONNX model: got %d graphs, expected 1", graphs)
	}
	var errs []error
	for _, v := range r.inputs {
		if c, ok := r.constants[v.name]; ok { // a default value
			if p, err := v.toPort("input"); err == nil &&
				c.shape != nil && p.DataType.Size() > 0 {
				if p.Shape == nil {
					p.Shape = c.shape
				}
				r.signature.Defaults = append(r.signature.Defaults, p)
			}
			continue
		}
		p, err := v.toPort("input")
		errs = append(errs, err)
		r.signature.Inputs = append(r.signature.Inputs, p)
	}
	if len(r.signature.Inputs) == 0 {
		errs = append(errs, errors.New("the model has no inputs"))
	}
	if err := r.addOutputs(m); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(r.steps) <= maxSteps {
		r.signature.steps, r.signature.constants = r.steps, maps.Clone(r.constants)
		r.signature.Bounds = inferBounds(r.signature.Inputs, r.signature.Outputs, r.steps,
			r.constants)
	}
	return &r.signature, nil
}

// addOutputs gives the signature the outputs that can be served, and the reasons of the others. It
// is an error if there are none.
func (r *reader) addOutputs(m message) error {
	if len(r.outputs) == 0 {
		return errors.New("the model has no outputs")
	}
	maps, err := r.readMaps(m)
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range r.outputs {
		p, err := v.toPort("output")
		if columns, ok := maps[v.name]; ok && v.kind != "" {
			v.kind, v.element, v.hasShape = "", floatElement, true
			v.shape, v.dims = []int64{Dynamic, int64(len(columns))}, nil
			p, err = v.toPort("output")
			p.Labels = columns
		}
		if err != nil {
			errs = append(errs, err)
			r.signature.Without = append(r.signature.Without, err.Error())
			continue
		}
		r.signature.Outputs = append(r.signature.Outputs, p)
	}
	if len(r.signature.Outputs) == 0 {
		return errors.Join(errs...)
	}
	return nil
}

// maxNameBytes bounds the name of an input or output, which is a few words. It is far below
// longestText, because every message that describes the model has it.
const maxNameBytes = 1 << 10

// toPort checks that v can be served. role is "input" or "output".
func (v value) toPort(role string) (ValueDescription, error) {
	if v.kind != "" {
		return ValueDescription{}, fmt.Errorf(
			"%s %q is a %s; only tensors can be served (for scikit-learn export with zipmap=False)",
			role, v.name, v.kind)
	}
	// Names go into messages, which carry text in UTF-8 alone, and to all agents and their clients.
	if len(v.name) > maxNameBytes || !utf8.ValidString(v.name) {
		return ValueDescription{},
			fmt.Errorf("%s %.80q has a name of %d bytes; expected UTF-8, at most %d bytes", role,
				v.name, len(v.name), maxNameBytes)
	}
	dataType, ok := elementTypes[v.element]
	if !ok {
		return ValueDescription{}, fmt.Errorf(
			"%s %q has ONNX element type %d, which the protocol has no name for", role, v.name,
			v.element)
	}
	p := ValueDescription{Name: v.name, DataType: dataType, Shape: v.shape, Dims: v.dims}
	if v.hasShape && p.Shape == nil {
		p.Shape = []int64{} // a scalar
	}
	return p, nil
}

func (r *reader) readOpset(f field) error {
	m, err := f.readMessage()
	if err != nil {
		return err
	}
	var domain string
	var version int64
	err = m.eachField(func(f field) error {
		var err error
		switch f.number {
		case opsetDomain:
			domain, err = f.readText()
		case opsetVersion:
			version, err = f.readInteger()
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("opset: %w", err)
	case domain == "" || domain == "ai.onnx":
		r.signature.Opset = version
	default:
		if r.signature.Domains == nil {
			r.signature.Domains = map[string]int64{}
		}
		r.signature.Domains[domain] = version
	}
	return nil
}

// readGraph reads the main graph (depth 0) or a graph within a node. Of the latter it only collects
// the external data.
func (r *reader) readGraph(f field, depth int) error {
	if depth > deepest {
		return fmt.Errorf("graphs nested deeper than %d", deepest)
	}
	m, err := f.readMessage()
	if err != nil {
		return err
	}
	err = m.eachField(func(f field) error {
		switch f.number {
		case graphNode:
			return r.readNode(f, depth)
		case graphInitializer:
			name, c, err := r.readTensor(f)
			if err == nil && depth == 0 {
				r.constants[name] = c
			}
			return err
		case graphSparseInitializer:
			name, err := r.readSparseTensor(f)
			if err == nil && depth == 0 {
				r.constants[name] = constant{}
			}
			return err
		case graphInput, graphOutput:
			if depth > 0 && (f.number == graphInput || r.nested == nil) {
				return nil
			}
			if depth > 0 {
				v, err := readValue(f)
				*r.nested = append(*r.nested, v.name)
				return err
			}
			v, err := readValue(f)
			if err != nil {
				return err
			}
			if f.number == graphInput {
				r.inputs = append(r.inputs, v)
			} else {
				r.outputs = append(r.outputs, v)
			}
		}
		return nil
	})
	if err != nil && depth == 0 {
		return fmt.Errorf("graph: %w", err)
	}
	return err
}

func (r *reader) readNode(f field, depth int) error {
	m, err := f.readMessage()
	if err != nil {
		return err
	}
	if depth > 0 {
		return m.eachField(func(f field) error {
			switch {
			case f.number == nodeAttribute:
				return r.readAttribute(f, depth, nil)
			case f.number == nodeInput && r.nested != nil:
				name, err := f.readText()
				*r.nested = append(*r.nested, name)
				return err
			}
			return nil
		})
	}
	s := step{ints: map[string][]int64{}}
	r.nested = &s.nested
	defer func() { r.nested = nil }()
	err = m.eachField(func(f field) (err error) {
		var name string
		switch f.number {
		case nodeInput:
			name, err = f.readText()
			s.inputs = append(s.inputs, name)
		case nodeOutput:
			name, err = f.readText()
			s.outputs = append(s.outputs, name)
		case nodeOpType:
			s.op, err = f.readText()
		case nodeDomain:
			s.domain, err = f.readText()
		case nodeAttribute:
			err = r.readAttribute(f, depth, &s)
		}
		return err
	})
	if r.signature.Operators == nil {
		r.signature.Operators = map[string]bool{}
	}
	r.signature.Operators[s.op] = true
	if len(r.steps) <= maxSteps {
		r.steps = append(r.steps, s)
	}
	return err
}

// readFunction collects the external data of a FunctionProto.
func (r *reader) readFunction(f field) error {
	m, err := f.readMessage()
	if err != nil {
		return err
	}
	err = m.eachField(func(f field) error {
		switch f.number {
		case functionNode:
			return r.readNode(f, 1)
		case functionAttribute:
			return r.readAttribute(f, 1, nil)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("function: %w", err)
	}
	return nil
}

// readAttribute collects the external data of an AttributeProto, and its integers for the step that
// it is of, which may be nil.
func (r *reader) readAttribute(f field, depth int, s *step) error {
	m, err := f.readMessage()
	if err != nil {
		return err
	}
	var name, text string
	var list []int64
	known := true
	var c constant
	err = m.eachField(func(f field) (err error) {
		switch f.number {
		case attributeName:
			if s != nil {
				name, err = f.readText()
			}
		case attributeInt, attributeInts:
			if s != nil {
				var more []int64
				var ok bool
				more, ok, err = f.readInts()
				known = known && ok && len(list)+len(more) <= maxInts
				if known {
					list = append(list, more...)
				}
			}
		case attributeString:
			if s != nil && f.body.end-f.body.pos <= maxNameBytes {
				text, err = f.readText()
			}
		case attributeTensor:
			_, c, err = r.readTensor(f)
		case attributeTensors:
			_, _, err = r.readTensor(f)
		case attributeGraph, attributeGraphs:
			err = r.readGraph(f, depth+1)
		case attributeSparse, attributeSparseTensors:
			_, err = r.readSparseTensor(f)
		}
		return err
	})
	if s != nil && known && list != nil {
		s.ints[name] = list
	}
	if s != nil && text != "" {
		if s.texts == nil {
			s.texts = map[string]string{}
		}
		s.texts[name] = text
	}
	if s != nil && name == "value" {
		s.value = c
	}
	return err
}

// readSparseTensor reads a SparseTensorProto and returns its name, which is that of its values.
func (r *reader) readSparseTensor(f field) (name string, err error) {
	m, err := f.readMessage()
	if err != nil {
		return "", err
	}
	err = m.eachField(func(f field) error {
		var err error
		switch f.number {
		case sparseValues:
			name, _, err = r.readTensor(f)
		case sparseIndices:
			_, _, err = r.readTensor(f)
		}
		return err
	})
	return name, err
}

// readTensor reads a tensor. It returns its name and what is to be known of it, and adds its
// external data to the signature.
func (r *reader) readTensor(f field) (name string, c constant, err error) {
	m, err := f.readMessage()
	if err != nil {
		return "", constant{}, err
	}
	external, few := false, true // few: its integers are few, as far as they were read
	entries := map[string]string{}
	var kind uint64
	c.shape = []int64{}
	err = m.eachField(func(f field) error {
		var err error
		switch f.number {
		case tensorDims:
			var dims []int64
			var ok bool
			if dims, ok, err = f.readInts(); !ok && err == nil {
				err = errors.New("too many dimensions")
			}
			c.shape = append(c.shape, dims...)
		case tensorDataType:
			var v int64
			v, err = f.readInteger()
			kind = uint64(uint32(v)) // an int32, as protobuf reads it
		case tensorInt32Data, tensorInt64Data:
			var list []int64
			var ok bool
			list, ok, err = f.readInts()
			if few = few && ok && len(c.ints)+len(list) <= maxInts; few {
				c.ints = append(c.ints, list...)
			}
		case tensorRawData:
			c.ints, err = f.rawInts(kind)
		case tensorName:
			name, err = f.readText()
		case tensorDataLocation:
			var v int64
			v, err = f.readInteger()
			external = isExternal(external, uint64(v))
		case tensorExternalData:
			var key, value string
			if key, value, err = readEntry(f); err == nil {
				entries[key] = value
			}
		}
		return err
	})
	if err == nil && external {
		err = r.readExternal(entries)
	}
	if err != nil {
		return "", constant{}, fmt.Errorf("tensor %q: %w", name, err)
	}
	if !few || external || int64(len(c.ints)) != countElements(c.shape) ||
		elementTypes[kind] != tensor.Int64 && elementTypes[kind] != tensor.Int32 {
		c.ints = nil
	}
	return name, c, nil
}

// addressPrefix begins the locations by which ONNX Runtime means its own memory: it takes the
// offset for an address.
const addressPrefix = "*/_ORT_"

func (r *reader) readExternal(entries map[string]string) error {
	location := entries["location"]
	if !filepath.IsLocal(location) || strings.HasPrefix(location, addressPrefix) {
		return fmt.Errorf("external data in %q: expected a path within the model's folder",
			location)
	}
	var size int64
	for _, key := range []string{"offset", "length"} {
		if s, ok := entries[key]; ok {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil || n < 0 || size+n < 0 {
				return fmt.Errorf("external data in %q: %s is %q, expected a number of bytes",
					location, key, s)
			}
			size += n
		}
	}
	location = filepath.Clean(location)
	for i := range r.signature.Data {
		if d := &r.signature.Data[i]; d.Location == location {
			d.Size = max(d.Size, size)
			return nil
		}
	}
	r.signature.Data = append(r.signature.Data, DataFile{Location: location, Size: size})
	return nil
}

func readEntry(f field) (key, value string, err error) {
	m, err := f.readMessage()
	if err != nil {
		return "", "", err
	}
	err = m.eachField(func(f field) error {
		var err error
		switch f.number {
		case entryKey:
			key, err = f.readText()
		case entryValue:
			value, err = f.readText()
		}
		return err
	})
	return key, value, err
}

func readValue(f field) (v value, err error) {
	m, err := f.readMessage()
	if err != nil {
		return value{}, err
	}
	err = m.eachField(func(f field) error {
		var err error
		switch f.number {
		case valueName:
			v.name, err = f.readText()
		case valueType:
			err = v.readType(f)
		}
		return err
	})
	if err != nil {
		return value{}, fmt.Errorf("value %q: %w", v.name, err)
	}
	return v, nil
}

func (v *value) readType(f field) error {
	m, err := f.readMessage()
	if err != nil {
		return err
	}
	return m.eachField(func(f field) error {
		switch f.number {
		case typeTensor:
			return v.readTensorType(f)
		case typeSequence:
			v.kind = "sequence"
		case typeMap:
			v.kind = "map"
		case typeSparseTensor:
			v.kind = "sparse tensor"
		case typeOptional:
			v.kind = "optional"
		}
		return nil
	})
}

func (v *value) readTensorType(f field) error {
	m, err := f.readMessage()
	if err != nil {
		return err
	}
	return m.eachField(func(f field) error {
		switch f.number {
		case tensorTypeElement:
			n, err := f.readInteger()
			v.element = uint64(uint32(n)) // an int32, as protobuf reads it
			return err
		case tensorTypeShape:
			m, err := f.readMessage()
			if err != nil {
				return err
			}
			v.hasShape = true
			return m.eachField(func(f field) error {
				if f.number != shapeDim {
					return nil
				}
				d, name, err := readDim(f)
				v.shape = append(v.shape, d)
				if name != "" && v.dims == nil {
					v.dims = make([]string, len(v.shape)-1)
				}
				if v.dims != nil {
					v.dims = append(v.dims, name)
				}
				return err
			})
		}
		return nil
	})
}

// readDim returns a dimension's size, and its name if it has one that messages can carry. The size
// is Dynamic for a dimension with a name, without a size, or with a negative size, which some
// exporters write.
func readDim(f field) (size int64, name string, err error) {
	m, err := f.readMessage()
	if err != nil {
		return 0, "", err
	}
	size = Dynamic
	err = m.eachField(func(f field) error {
		var err error
		switch f.number {
		case dimValue: // one of the two: the last counts
			name = ""
			if size, err = f.readInteger(); size < 0 {
				size = Dynamic
			}
		case dimParam:
			size = Dynamic
			name, err = f.readText()
		}
		return err
	})
	if len(name) > maxNameBytes || !utf8.ValidString(name) {
		name = ""
	}
	return size, name, err
}
