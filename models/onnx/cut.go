package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
)

// This file cuts a graph in two: what depends on users alone runs once for each user, and the rest
// once for each row. Where both meet, an index of the user of each row repeats the values of users,
// as late as is possible.

// RowToUser is the name of the input that CutUsers adds: for each row the number of its user.
const RowToUser = "muster_row_to_user"

// minUserColumns is the least width of users' columns for which a product is divided in two. Below
// it a product costs less than the nodes that divide it. Chosen; 2x either way changes little.
const minUserColumns = 16

// elementOperators take one value and make each element of that at the same place.
var elementOperators = map[string]bool{
	"Abs": true, "Cast": true, "Elu": true, "Erf": true, "Exp": true, "Gelu": true,
	"HardSigmoid": true, "HardSwish": true, "Identity": true, "LeakyRelu": true, "Log": true,
	"Mish": true, "Neg": true, "Relu": true, "Selu": true, "Sigmoid": true, "Softplus": true,
	"Sqrt": true, "Tanh": true,
}

// broadcastOperators repeat a value of one element in a dimension where another has more.
var broadcastOperators = map[string]bool{
	"Add": true, "Div": true, "Equal": true, "Expand": true, "Greater": true,
	"GreaterOrEqual": true, "Less": true, "LessOrEqual": true, "Max": true, "Min": true,
	"Mul": true, "Pow": true, "Sub": true, "Sum": true, "Where": true,
}

// A cutter builds the nodes of a graph that is cut.
type cutter struct {
	graph     *Graph
	flow      *Flow
	producers map[string]Node // of the graph that was read
	index     string          // RowToUser as the graph has it
	users     []string        // the inputs
	nodes     []Node          // so far
	repeated  map[string]string
	broadcast map[string]string
	// short is the index of one user if there is only one, else that of each row; "" until needed.
	short     string
	constants map[string]string
}

// CutUsers changes the graph so that what depends on the inputs of role user alone, and on
// constants, runs at as many rows as these have, and adds the input RowToUser of data type INT64.
// stated is as for Signature.Flow. The graph's outputs have a row for each element of it. It is an
// error if rows of the outputs may depend on one another, or if no input is of rows; the graph is
// then as before.
//
// The caller marshals the graph, and reads it again before further changes.
func (g *Graph) CutUsers(stated map[string]roles.Role) error {
	var users []string
	for _, p := range g.Signature.Inputs {
		if stated[p.Name] != roles.User {
			continue
		}
		if len(p.Shape) == 0 {
			return fmt.Errorf("input %q has no dimensions", p.Name)
		}
		users = append(users, p.Name)
	}
	if len(users) == 0 || len(users) >= len(g.Signature.Inputs) {
		return errors.New("no input is of users, or all are")
	}
	if g.names[RowToUser] {
		return fmt.Errorf("the graph has a value %q", RowToUser)
	}
	flow := g.Signature.Flow(stated)
	if i := flow.Independence(); !i.IsProven() {
		return errors.New(i.Reason)
	}
	c := &cutter{
		graph: g, flow: flow, producers: map[string]Node{}, index: g.Fresh(RowToUser), users: users,
		repeated: map[string]string{}, broadcast: map[string]string{},
		constants: map[string]string{},
	}
	for _, n := range g.Nodes {
		for _, output := range n.Outputs {
			c.producers[output] = n
		}
	}
	for _, n := range g.Nodes {
		if c.classOf(n) == ofRows {
			c.addRowNode(n)
		} else {
			c.nodes = append(c.nodes, n)
		}
	}
	c.repeatOutputs()
	g.Nodes = c.nodes
	if err := g.removeIdleNodes(); err != nil {
		return err
	}
	return c.declareInputs()
}

// A cutClass says how often a value or node is computed.
type cutClass uint8

const (
	ofModel cutClass = iota // once, or for each query
	ofUsers                 // for each user
	ofRows                  // for each row
)

// classOfValue returns the class of a value of the graph that was read.
func (c *cutter) classOfValue(name string) cutClass {
	v := c.flow.values[name]
	has := func(x symbol) bool {
		return slices.ContainsFunc(v.ints, func(s size) bool {
			return slices.Contains(s.symbols, x)
		})
	}
	switch {
	case v.from&fromRows != 0 || has(rowsSymbol):
		return ofRows
	case v.from&fromUsers != 0 || has(usersSymbol):
		return ofUsers
	}
	return ofModel
}

func (c *cutter) classOf(n Node) (class cutClass) {
	for _, name := range n.Inputs {
		class = max(class, c.classOfValue(name))
	}
	for _, name := range n.Outputs { // such as what was made of the shape of rows
		class = max(class, c.classOfValue(name))
	}
	return class
}

// add appends a node with one output, whose name it returns.
func (c *cutter) add(op, base string, inputs []string, attributes ...Attribute) string {
	name := c.graph.Fresh("muster/" + base + "/" + op)
	c.nodes = append(c.nodes, Node{
		Op: op, Name: name, Inputs: inputs, Outputs: []string{name}, Attributes: attributes,
	})
	return name
}

// ints returns a constant list of integers.
func (c *cutter) ints(values ...int64) string {
	key := fmt.Sprint(values)
	if name, ok := c.constants[key]; ok {
		return name
	}
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint64(data, uint64(v))
	}
	name := c.graph.Fresh("muster/" + key)
	c.graph.Add(Initializer{
		Name: name, DataType: tensor.Int64, Shape: []int64{int64(len(values))}, Data: data,
	})
	c.constants[key] = name
	return name
}

// userDimension returns the dimension of a value that counts users, if that is all it counts and
// its rows do not depend on one another; -1 if there is none.
func (c *cutter) userDimension(name string) int {
	v := c.flow.values[name]
	at := countingDim(v.dims)
	if v.mixes != "" || v.ints != nil || v.dims == nil || at < 0 ||
		!v.dims[at].equals(size{1, []symbol{usersSymbol}}) {
		return -1
	}
	return at
}

// repeat returns the value with a row for each row of the run in the place of each user.
func (c *cutter) repeat(name string) string {
	if c.classOfValue(name) != ofUsers {
		return name
	}
	if made, ok := c.repeated[name]; ok {
		return made
	}
	made := ""
	if at := c.userDimension(name); at >= 0 {
		made = c.add("Gather", name, []string{name, c.index}, Attribute{"axis", int64(at)})
	} else { // a shape, or rows that are folded: compute it of what is repeated
		n := c.producers[name]
		at := slices.Index(n.Outputs, name)
		for i, input := range n.Inputs {
			n.SetInput(i, c.repeat(input))
		}
		for i, output := range n.Outputs {
			if output != "" {
				n.SetOutput(i, c.graph.Fresh("muster/"+output))
			}
		}
		n.setName(c.graph.Fresh("muster/" + n.Name))
		c.nodes = append(c.nodes, n)
		made = n.Outputs[at]
	}
	c.repeated[name] = made
	return made
}

// repeatShort is repeat for a place where ONNX Runtime repeats a dimension of one element: with one
// user there is nothing to copy.
func (c *cutter) repeatShort(name string) string {
	at := c.userDimension(name)
	if c.classOfValue(name) != ofUsers || at < 0 {
		return c.repeat(name)
	}
	if made, ok := c.broadcast[name]; ok {
		return made
	}
	made := c.add("Gather", name, []string{name, c.addBroadcastIndex()}, Attribute{"axis",
		int64(at)})
	c.broadcast[name] = made
	return made
}

// addBroadcastIndex returns the index that has one element if there is one user, else one for each
// row.
func (c *cutter) addBroadcastIndex() string {
	if c.short != "" {
		return c.short
	}
	one, zero := c.ints(1), c.ints(0)
	users := c.add("Gather", "users", []string{c.add("Shape", "users", c.users[:1]), zero},
		Attribute{"axis", int64(0)})
	rows := c.add("Shape", "rows", []string{c.index})
	single := c.add("Equal", "users", []string{users, one})
	end := c.add("Where", "users", []string{single, one, rows})
	c.short = c.add("Slice", "users", []string{c.index, zero, end, zero})
	return c.short
}

// addRowNode adds a node that runs for each row.
func (c *cutter) addRowNode(n Node) {
	if c.divideProduct(n) {
		return
	}
	inputs := slices.Clone(n.Inputs)
	for i, name := range inputs {
		if c.classOfValue(name) != ofUsers {
			continue
		}
		made := ""
		if c.isBroadcast(n, i) {
			made = c.repeatShort(name)
		} else {
			made = c.repeat(name)
		}
		n.SetInput(i, made)
	}
	c.nodes = append(c.nodes, n)
}

// isBroadcast reports whether ONNX Runtime repeats input i of a node where it has one user.
func (c *cutter) isBroadcast(n Node, i int) bool {
	at := c.userDimension(n.Inputs[i])
	if at < 0 || !n.Standard() {
		return false
	}
	fromEnd := len(c.flow.values[n.Inputs[i]].dims) - at
	switch {
	case n.Op == "MatMul" && fromEnd < 3: // a dimension of the matrix itself
		return false
	case n.Op == "Gemm":
		return i == 2
	case n.Op != "MatMul" && !broadcastOperators[n.Op]:
		return false
	}
	for j, name := range n.Inputs { // another value has a row for each row there
		v := c.flow.values[name]
		dims := v.dims
		if n.Op == "Expand" && j == 1 {
			dims = v.ints
		}
		if k := len(dims) - fromEnd; j != i && k >= 0 && dims[k].equals(size{1,
			[]symbol{rowsSymbol}}) {
			return true
		}
	}
	return false
}

// A cutPart is columns of a matrix whose rows are those of a run or its users.
type cutPart struct {
	name    string // of a value of the graph that was read, or of one that was added
	class   cutClass
	columns int64
	// joined is the axis along which the value is joined with others before each row is made a
	// list; 0: it is a matrix already.
	joined int64
}

// divideProduct adds the product of a matrix that joins columns of users and of rows with a
// constant, as the sum of two products; false if n is none such.
func (c *cutter) divideProduct(n Node) bool {
	gemm := n.Op == "Gemm"
	if !n.Standard() || !gemm && n.Op != "MatMul" || len(n.Inputs) < 2 || len(n.Outputs) != 1 {
		return false
	}
	transA, _ := n.Attribute("transA").(int64)
	transB, _ := n.Attribute("transB").(int64)
	weights := c.flow.values[n.Inputs[1]]
	if transA != 0 || c.classOfValue(n.Inputs[1]) != ofModel || weights.from != 0 ||
		len(weights.dims) != 2 {
		return false
	}
	parts, ok := c.partsOf(n.Inputs[0], false)
	columns := [3]int64{}
	for _, p := range parts {
		columns[p.class] += p.columns
	}
	if !ok || columns[ofUsers] < minUserColumns || columns[ofRows] == 0 || columns[ofModel] > 0 {
		return false
	}
	parts, _ = c.partsOf(n.Inputs[0], true) // again, with nodes
	x, w := c.joinParts(n, parts, ofUsers, transB)
	y, v := c.joinParts(n, parts, ofRows, transB)
	if gemm {
		c.addGemms(n, [2]string{x, y}, [2]string{w, v}, transB)
		return true
	}
	product := c.shorten(c.add("MatMul", n.Name, []string{x, w}))
	c.nodes = append(c.nodes, Node{
		Op: "Add", Name: n.Name, Inputs: []string{c.add("MatMul", n.Name, []string{y, v}), product},
		Outputs: n.Outputs,
	})
	return true
}

// shorten adds the repetition of a product of users' rows, to be broadcast.
func (c *cutter) shorten(product string) string {
	return c.add("Gather", product, []string{product, c.addBroadcastIndex()}, Attribute{"axis",
		int64(0)})
}

// joinParts returns the columns of a class as one matrix x, and the rows of n's weights that they
// are multiplied by.
func (c *cutter) joinParts(n Node, parts []cutPart, class cutClass, transB int64) (x, w string) {
	var own []cutPart
	var weights []string
	at := int64(0)
	for i := 0; i < len(parts); {
		from, k := at, i
		for ; k < len(parts) && parts[k].class == parts[i].class; k++ {
			at += parts[k].columns
			if parts[k].class == class {
				own = append(own, parts[k])
			}
		}
		if parts[i].class == class {
			weights = append(weights, c.add("Slice", n.Inputs[1], []string{
				n.Inputs[1], c.ints(from), c.ints(at), c.ints(transB),
			}))
		}
		i = k
	}
	w = weights[0]
	if len(weights) > 1 {
		w = c.add("Concat", n.Inputs[1], weights, Attribute{"axis", transB})
	}
	return c.joinColumns(n.Inputs[0], own), w
}

// joinColumns returns the matrix of the parts. It joins them as the graph that was read does, which
// package kernels knows.
func (c *cutter) joinColumns(base string, parts []cutPart) string {
	axis, columns := parts[0].joined, int64(0)
	for _, p := range parts {
		columns += p.columns
		if p.joined != axis {
			axis = 0
		}
	}
	var values []string
	for _, p := range parts {
		if axis == 0 {
			p = c.flatten(p)
		}
		values = append(values, p.name)
	}
	all := cutPart{name: values[0], columns: columns, joined: axis}
	if axis == 0 {
		axis = -1
	}
	if len(values) > 1 {
		all.name = c.add("Concat", base, values, Attribute{"axis", axis})
	}
	return c.flatten(all).name
}

// flatten makes a matrix of a part.
func (c *cutter) flatten(p cutPart) cutPart {
	if p.joined > 0 {
		p.name = c.add("Reshape", p.name, []string{p.name, c.ints(-1, p.columns)})
		p.joined = 0
	}
	return p
}

// addGemms adds a Gemm as the sum of one of users' columns, x[0], and one of rows', x[1].
func (c *cutter) addGemms(n Node, x, w [2]string, transB int64) {
	alpha := []Attribute{{"transB", transB}}
	beta := float32(1)
	for _, a := range n.Attributes {
		switch a.Name {
		case "alpha":
			alpha = append(alpha, a)
		case "beta":
			beta, _ = a.Value.(float32)
		}
	}
	first := Node{Inputs: []string{x[0], w[0]}, Attributes: alpha}
	bias := ""
	if len(n.Inputs) > 2 {
		bias = n.Inputs[2]
	}
	ofRow := bias != "" && c.classOfValue(bias) == ofRows
	if bias != "" && !ofRow {
		first.Inputs = append(first.Inputs, bias)
		first.Attributes = append(slices.Clone(alpha), Attribute{"beta", beta})
	}
	product := c.shorten(c.add("Gemm", n.Name, first.Inputs, first.Attributes...))
	last := Node{Op: "Gemm", Name: n.Name, Inputs: []string{x[1], w[1], product},
		Outputs: n.Outputs, Attributes: alpha}
	if !ofRow {
		c.nodes = append(c.nodes, last)
		return
	}
	scale := c.graph.Fresh("muster/" + n.Name + "/beta")
	c.graph.Add(Initializer{Name: scale, DataType: tensor.FP32, Shape: []int64{},
		Data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(beta))})
	bias = c.add("Mul", n.Name, []string{bias, scale})
	last.Outputs = []string{c.graph.Fresh("muster/" + n.Name)}
	c.nodes = append(c.nodes, last, Node{
		Op: "Add", Name: c.graph.Fresh("muster/" + n.Name), Inputs: []string{last.Outputs[0], bias},
		Outputs: n.Outputs,
	})
}

// partsOf returns the columns that a matrix consists of: the last dimension's, where the first
// dimension counts rows or users. With build it adds the nodes that the parts need. It returns
// false if the matrix has no parts.
func (c *cutter) partsOf(name string, build bool) ([]cutPart, bool) {
	v := c.flow.values[name]
	n, made := c.producers[name]
	last := len(v.dims) - 1
	if last < 1 || countingDim(v.dims) != 0 || !v.dims[last].isFixed() || v.mixes != "" {
		return nil, false
	}
	whole := []cutPart{{name, c.classOfValue(name), v.dims[last].factor, 0}}
	if whole[0].class != ofRows || !made || !n.Standard() || len(n.Outputs) != 1 {
		return whole, true
	}
	switch {
	case elementOperators[n.Op] && len(n.Inputs) == 1:
		parts, ok := c.partsOf(n.Inputs[0], build)
		if !ok || len(parts) < 2 {
			return whole, true
		}
		for i := range parts {
			if build {
				parts[i] = c.flatten(parts[i])
				parts[i].name = c.addCopy(n, parts[i].name)
			}
		}
		return parts, true
	case n.Op == "Reshape" || n.Op == "Flatten":
		parts, ok := c.flatParts(n, last)
		if !ok {
			return whole, true
		}
		return parts, true
	case n.Op == "Concat":
		axis, ok := n.Attribute("axis").(int64)
		if at, in := axisIn(axis, len(v.dims)); !ok || !in || at != last {
			return whole, true
		}
		var parts []cutPart
		for _, input := range n.Inputs {
			more, ok := c.partsOf(input, build)
			if !ok {
				return whole, true
			}
			parts = append(parts, more...)
		}
		return parts, true
	}
	return whole, true
}

// flatParts returns the parts of what a Reshape or Flatten makes of a Concat: a matrix of as many
// columns as a row of the Concat has elements. Its parts follow one another in each row.
func (c *cutter) flatParts(n Node, last int) ([]cutPart, bool) {
	joined, ok := c.producers[n.Inputs[0]]
	dims := c.flow.values[n.Inputs[0]].dims
	if !ok || joined.Op != "Concat" || !joined.Standard() || last != 1 || len(dims) < 2 ||
		countingDim(dims) != 0 {
		return nil, false
	}
	axis, _ := joined.Attribute("axis").(int64)
	at, in := axisIn(axis, len(dims))
	if !in || at < 1 || !productOf(dims[1:at]).isOne() {
		return nil, false
	}
	var parts []cutPart
	for _, input := range joined.Inputs {
		v := c.flow.values[input]
		if len(v.dims) != len(dims) || countingDim(v.dims) != 0 || v.mixes != "" {
			return nil, false
		}
		width := productOf(v.dims[1:])
		if !width.isFixed() {
			return nil, false
		}
		parts = append(parts, cutPart{input, c.classOfValue(input), width.factor, int64(at)})
	}
	return parts, true
}

// addCopy adds a copy of a node of one input and output for another input, and returns its output.
func (c *cutter) addCopy(n Node, input string) string {
	n.SetInput(0, input)
	n.SetOutput(0, c.graph.Fresh("muster/"+n.Outputs[0]))
	n.setName(n.Outputs[0])
	c.nodes = append(c.nodes, n)
	return n.Outputs[0]
}

// repeatOutputs gives the graph's outputs of users a row for each row.
func (c *cutter) repeatOutputs() {
	for _, p := range c.graph.Signature.Outputs {
		if c.classOfValue(p.Name) != ofUsers {
			continue
		}
		made := c.graph.Fresh("muster/" + p.Name)
		for i := range c.nodes {
			n := &c.nodes[i]
			for j, name := range n.Inputs {
				if name == p.Name {
					n.SetInput(j, made)
				}
			}
			for j, name := range n.Outputs {
				if name == p.Name {
					n.SetOutput(j, made)
				}
			}
		}
		c.nodes = append(c.nodes, Node{
			Op: "Gather", Name: c.graph.Fresh("muster/" + p.Name + "/Gather"),
			Inputs: []string{made, c.index}, Outputs: []string{p.Name},
			Attributes: []Attribute{{"axis", int64(0)}},
		})
	}
}

// declareInputs declares the index, gives the users' inputs a first dimension of their own, and
// removes what the file says of the shapes of users' values. ONNX Runtime takes dimensions of one
// name for equal, and lets values of equal shapes have the same memory.
func (c *cutter) declareInputs() error {
	g := c.graph
	var kept []wireField
	declare := func(p ValueDescription, first string) {
		p.Dims = append(slices.Clone(p.Dims), make([]string, len(p.Shape)-len(p.Dims))...)
		p.Dims[0] = first
		var e encoder
		e.writeMessage(graphInput, p.encode)
		// split has made it
		fields, _ := split(e.b)
		kept = append(kept, fields...)
	}
	for _, f := range g.graph {
		if f.number == graphInput || f.number == graphValueInfo {
			name, err := nameOf(f.body, valueName)
			if err != nil {
				return err
			}
			if f.number == graphValueInfo && c.classOfValue(name) == ofUsers {
				continue
			}
			i := slices.IndexFunc(g.Signature.Inputs,
				func(p ValueDescription) bool { return p.Name == name })
			if f.number == graphInput && slices.Contains(c.users, name) {
				p := g.Signature.Inputs[i]
				p.Shape = slices.Clone(p.Shape)
				p.Shape[0] = Dynamic
				declare(p, "muster_users")
				continue
			}
		}
		kept = append(kept, f)
	}
	declare(ValueDescription{Name: c.index, DataType: tensor.Int64, Shape: []int64{Dynamic}}, "")
	g.graph, g.ranks = kept, nil
	return nil
}

// removeIdleNodes removes the nodes whose values nothing uses.
func (g *Graph) removeIdleNodes() error {
	for {
		used, err := g.countUses()
		if err != nil {
			return err
		}
		before := len(g.Nodes)
		g.Nodes = slices.DeleteFunc(g.Nodes, func(n Node) bool {
			return !slices.ContainsFunc(n.Outputs, func(name string) bool { return used[name] > 0 })
		})
		if len(g.Nodes) == before {
			return nil
		}
	}
}

// setName changes the node's name.
func (n *Node) setName(name string) {
	n.Name = name
	n.renameField(protowire.Number(nodeName), 0, name)
}
