package kernels

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

const (
	// checkedRows is how many rows of each table the check uses. Chosen: more than a vector has
	// numbers, so that all paths of an operator run, and few enough that the copies of large tables
	// take no memory.
	checkedRows = 64
)

// checkModel returns a model that computes each group in both ways, from the first rows of the
// model's tables.
func (m *matcher) checkModel(groups []group, threads int) (onnx.Model, error) {
	c := onnx.Model{Name: "check", Opset: m.graph.Signature.Opset,
		Domains: map[string]int64{domain: 1}}
	for d, version := range m.graph.Signature.Domains {
		c.Domains[d] = version
	}
	seen := map[string]bool{} // values and constants
	for i, g := range groups {
		for _, b := range g.bags {
			nodes := b.nodes
			if b.ids != b.source.value {
				nodes = append([]onnx.Node{m.graph.Nodes[m.producers[b.ids]]}, nodes...)
			}
			for _, n := range nodes {
				if seen[n.Outputs[0]] {
					continue
				}
				seen[n.Outputs[0]] = true
				c.Nodes = append(c.Nodes, n)
				for _, input := range slices.Concat(n.Inputs, slices.Sorted(maps.Keys(n.NestedUses()))) {
					t, ok := m.graph.Constant(input)
					if !ok || seen[input] {
						continue
					}
					seen[input] = true
					part, err := m.graph.Rows(t, checkedRows)
					if err != nil {
						return onnx.Model{}, err
					}
					c.Initializers = append(c.Initializers, part)
				}
			}
			m.addInputs(&c, &b, seen)
		}
		ours, theirs := g.makeNode(threads), fmt.Sprintf("%s/standard/%d", domain, i)
		ours.Outputs = []string{fmt.Sprintf("%s/ours/%d", domain, i)}
		var values []string
		for _, b := range g.bags {
			values = append(values, b.value)
		}
		c.Nodes = append(c.Nodes, ours, onnx.Node{Op: "Concat", Name: theirs, Inputs: values,
			Outputs: []string{theirs}, Attributes: []onnx.Attribute{{Name: "axis",
				Value: int64(-1)}}})
		for _, name := range []string{ours.Outputs[0], theirs} {
			c.Outputs = append(c.Outputs, onnx.ValueDescription{Name: name, DataType: tensor.FP32})
		}
	}
	return c, nil
}

// addInputs adds what a bag takes to the check's inputs.
func (m *matcher) addInputs(c *onnx.Model, b *bag, seen map[string]bool) {
	add := func(value string, kind tensor.DataType, rank int) {
		if value == "" || seen[value] {
			return
		}
		seen[value] = true
		c.Inputs = append(c.Inputs, onnx.ValueDescription{Name: value, DataType: kind,
			Shape: slices.Repeat([]int64{onnx.Dynamic}, rank)})
	}
	s := b.source
	add(s.value, m.idType(s.value), s.rank)
	add(b.offsets, m.idType(b.offsets), 1)
	rank, _ := m.rankOf(b.weights, 0)
	add(b.weights, tensor.FP32, rank)
	i := slices.IndexFunc(c.Inputs,
		func(p onnx.ValueDescription) bool { return p.Name == s.value })
	if shape := c.Inputs[i].Shape; s.split >= 0 {
		shape[s.split] = max(shape[s.split], s.of)
	} else if b.lookups > 0 {
		shape[b.reduce] = b.lookups
	}
}

// idType returns the data type of ids: that of an input of the graph or of a Cast, else INT64,
// which is what all others produce or nearly so; the check fails if it is not.
func (m *matcher) idType(value string) tensor.DataType {
	for range deepest {
		for _, p := range m.graph.Signature.Inputs {
			if p.Name == value {
				return p.DataType
			}
		}
		i, ok := m.producers[value]
		if !ok || len(m.graph.Nodes[i].Inputs) == 0 {
			break
		}
		n := m.graph.Nodes[i]
		if to, ok := n.Attribute("to").(int64); ok && n.Op == "Cast" {
			if to == 6 { // TensorProto.DataType.INT32
				return tensor.Int32
			}
			break
		}
		value = n.Inputs[0]
	}
	return tensor.Int64
}

// Check runs the rewritten model's operators and the standard ones on the first rows of its tables
// and random ids, and returns an error if they differ. options are those of a session that Register
// has been called with.
func (r *Rewritten) Check(options *ort.SessionOptions) error {
	random := rand.New(rand.NewPCG(1, 2)) // any fixed seed
	rows := map[string]int64{}            // the fewest rows of a table that ids are used for
	sizes := map[string][]int64{}
	r.setBounds(random, rows, sizes)
	offsets := r.offsets(sizes)
	var inputs, outputs []ort.Value
	defer func() {
		for _, v := range slices.Concat(inputs, outputs) {
			if v != nil {
				v.Destroy()
			}
		}
	}()
	var names, results []string
	for _, p := range r.check.Inputs {
		names = append(names, p.Name)
		var v ort.Value
		var err error
		switch {
		case p.DataType == tensor.FP32:
			v, err = randomWeights(random, sizes[p.Name])
		case offsets[p.Name] > 0:
			v, err = randomOffsets(random, p.DataType, sizes[p.Name], offsets[p.Name]-1)
		default:
			v, err = randomIDs(random, p.DataType, sizes[p.Name], rows[p.Name])
		}
		if err != nil {
			return err
		}
		inputs = append(inputs, v)
	}
	for _, p := range r.check.Outputs {
		results = append(results, p.Name)
		outputs = append(outputs, nil)
	}
	s, err := ort.NewDynamicAdvancedSessionWithONNXData(r.check.Marshal(), names, results, options)
	if err != nil {
		return err
	}
	defer s.Destroy()
	if err := s.Run(inputs, outputs); err != nil {
		return err
	}
	for i := 0; i < len(outputs); i += 2 {
		if err := checkSame(outputs[i], outputs[i+1]); err != nil {
			return fmt.Errorf("%s: %w", r.check.Outputs[i].Name, err)
		}
	}
	return nil
}

// setBounds sets the number of rows that ids of each input may name and the input's shape.
func (r *Rewritten) setBounds(random *rand.Rand, rows map[string]int64, sizes map[string][]int64) {
	count := map[string]int64{}
	for _, t := range r.check.Initializers {
		if len(t.Shape) == 2 {
			count[t.Name] = t.Shape[0]
		}
	}
	for _, n := range r.check.Nodes {
		if n.Domain != domain {
			continue
		}
		fields := n.Attribute("bags").([]int64)
		common := map[int]int64{} // the sizes of the output's axes
		for at := 0; at < len(fields); at += fieldCount {
			f := fieldsOf(fields[at:])
			name := n.Inputs[f.ids]
			if have, ok := rows[name]; !ok || count[n.Inputs[f.table]] < have {
				rows[name] = count[n.Inputs[f.table]]
			}
			shape := r.shapeOf(name, sizes)
			if f.offsets >= 0 {
				r.setRagged(n, f, shape, common, sizes)
				continue
			}
			axis := 0 // of the output
			for i := range shape {
				switch {
				case i == int(f.split):
					if f.drop {
						continue
					}
					if i != int(f.reduce) {
						common[axis] = f.size
					}
				case i == int(f.reduce):
					if shape[i] == onnx.Dynamic {
						shape[i] = 1 + random.Int64N(9)
					}
				default:
					if common[axis] == 0 {
						common[axis] = 1 + random.Int64N(4)
					}
					shape[i] = common[axis]
				}
				if i != int(f.reduce) || f.keep {
					axis++
				}
			}
			if f.weights >= 0 {
				sizes[n.Inputs[f.weights]] = shape
			}
		}
	}
}

// shapeOf returns the shape of an input of the check, which is to be set.
func (r *Rewritten) shapeOf(name string, sizes map[string][]int64) []int64 {
	shape := sizes[name]
	if shape == nil {
		i := slices.IndexFunc(r.check.Inputs,
			func(p onnx.ValueDescription) bool { return p.Name == name })
		shape = slices.Clone(r.check.Inputs[i].Shape)
		sizes[name] = shape
	}
	return shape
}

const (
	// checkedBags is how many ragged bags the check has, and checkedIDs how many ids. Chosen: some bags
	// are empty, some have several ids, and the last has some or none; see randomOffsets.
	checkedBags = 9
	checkedIDs  = 40
)

// setRagged is setBounds for a table whose ids have offsets.
func (r *Rewritten) setRagged(n onnx.Node, f fields, shape []int64, common map[int]int64,
	sizes map[string][]int64) {
	for i := range shape {
		if shape[i] == onnx.Dynamic {
			shape[i] = 1
			if i == 0 {
				shape[i] = checkedIDs
			}
		}
	}
	if common[0] == 0 {
		common[0] = checkedBags
	}
	bags := common[0]
	if f.last {
		bags++
	}
	sizes[n.Inputs[f.offsets]] = []int64{bags}
	if f.weights >= 0 {
		sizes[n.Inputs[f.weights]] = shape
	}
}

// offsets returns the inputs that are offsets, each with 1 more than the number of ids that they are
// for.
func (r *Rewritten) offsets(sizes map[string][]int64) map[string]int64 {
	all := map[string]int64{}
	for _, n := range r.check.Nodes {
		if n.Domain != domain {
			continue
		}
		fields := n.Attribute("bags").([]int64)
		for at := 0; at < len(fields); at += fieldCount {
			if f := fieldsOf(fields[at:]); f.offsets >= 0 {
				count := int64(1)
				for _, d := range sizes[n.Inputs[f.ids]] {
					count *= d
				}
				all[n.Inputs[f.offsets]] = 1 + count
			}
		}
	}
	return all
}

// randomOffsets returns offsets that do not decrease, from 0 on, of bags of which some are empty. The
// last one is the number of ids, where it is the last of the ids.
func randomOffsets(random *rand.Rand, kind tensor.DataType, shape []int64, ids int64) (ort.Value,
	error) {
	values := make([]int64, shape[0])
	for i := 1; i < len(values); i++ {
		values[i] = values[i-1]
		if i%3 != 0 {
			values[i] = min(ids, values[i]+random.Int64N(2+2*ids/shape[0]))
		}
	}
	if len(values) > checkedBags {
		values[len(values)-1] = ids
	}
	if kind == tensor.Int32 {
		narrow := make([]int32, len(values))
		for i, v := range values {
			narrow[i] = int32(v)
		}
		return ort.NewTensor(ort.NewShape(shape...), narrow)
	}
	return ort.NewTensor(ort.NewShape(shape...), values)
}

// randomWeights returns numbers in [-1, 1).
func randomWeights(random *rand.Rand, shape []int64) (ort.Value, error) {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = 2*random.Float32() - 1
	}
	return ort.NewTensor(ort.NewShape(shape...), values)
}

// randomIDs returns a tensor of ids in [-rows, rows).
func randomIDs(random *rand.Rand, kind tensor.DataType, shape []int64, rows int64) (ort.Value,
	error) {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	rows = max(rows, 1)
	if kind == tensor.Int32 {
		values := make([]int32, n)
		for i := range values {
			values[i] = int32(random.Int64N(2*rows) - rows)
		}
		return ort.NewTensor(ort.NewShape(shape...), values)
	}
	values := make([]int64, n)
	for i := range values {
		values[i] = random.Int64N(2*rows) - rows
	}
	return ort.NewTensor(ort.NewShape(shape...), values)
}

// checkSame returns an error if two tensors have different shapes or values that differ by more
// than [tensor.Tolerance]: both sum in float32, but the standard ones not always in the order of ids.
func checkSame(ours, theirs ort.Value) error {
	a, ok := ours.(*ort.Tensor[float32])
	b, known := theirs.(*ort.Tensor[float32])
	if !ok || !known {
		return fmt.Errorf("got %T, the standard operators %T", ours, theirs)
	}
	if !slices.Equal(a.GetShape(), b.GetShape()) {
		return fmt.Errorf("got shape %v, the standard operators %v", a.GetShape(), b.GetShape())
	}
	return checkNear(a.GetData(), b.GetData())
}

func checkNear(ours, theirs []float32) error {
	var largest float64
	for _, v := range theirs {
		if v := math.Abs(float64(v)); v > largest && !math.IsInf(v, 0) {
			largest = v
		}
	}
	tolerance, _ := tensor.Tolerance(tensor.FP32, tensor.Kernels)
	for i := range ours {
		x, y := float64(ours[i]), float64(theirs[i])
		if x == y || math.IsNaN(x) && math.IsNaN(y) || math.Abs(x-y) <= tolerance*largest {
			continue
		}
		return fmt.Errorf("element %d is %v, of the standard operators %v", i, x, y)
	}
	return nil
}
