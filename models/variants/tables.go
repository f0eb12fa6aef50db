package variants

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// quantizeTables stores embedding tables in integers of the given bits, 8 or 4, with a scale for
// each row. A table is a constant FP32 matrix whose rows Gather nodes look up. It uses standard
// operators: the operator GatherBlockQuantized of ONNX Runtime takes 3 to 6 times as long.
func quantizeTables(g *onnx.Graph, bits int) (Report, error) {
	lookups := map[string][]int{} // the Gather nodes of each table
	for i, n := range g.Nodes {
		axis, _ := n.Attribute("axis").(int64)
		if n.Standard() && n.Op == "Gather" && len(n.Inputs) == 2 && axis == 0 {
			if t, ok := g.Constant(n.Inputs[0]); ok && t.DataType == tensor.FP32 &&
				len(t.Shape) == 2 {
				lookups[t.Name] = append(lookups[t.Name], i)
			}
		}
	}
	var report Report
	replaced := map[int][]onnx.Node{}
	for _, n := range g.Nodes {
		if len(n.Inputs) == 0 {
			continue
		}
		name := n.Inputs[0]
		at := lookups[name]
		if len(at) == 0 {
			continue
		}
		delete(lookups, name)
		t, _ := g.Constant(name)
		if why := whyNoTable(g, t, len(at), bits); why != "" {
			report.Left = append(report.Left, describeNode(n, why))
			continue
		}
		integers, scales, err := quantizeTable(g, t, bits)
		if err != nil {
			return Report{}, err
		}
		report.Changed++
		for _, i := range at {
			n := g.Nodes[i]
			ids, output := n.Inputs[1], n.Outputs[0]
			var nodes []onnx.Node
			op := func(op string, inputs []string, attributes ...onnx.Attribute) string {
				return add(g, &nodes, op, output, inputs, attributes...)
			}
			row := op("Cast", []string{op("Gather", []string{integers, ids})}, toFloat)
			if bits == 4 {
				// The high half of a byte h * 16 + l is floor(byte / 16).
				high := op("Floor", []string{
					op("Mul", []string{row, addFloat(g, "table4/sixteenth", 1./16)}),
				})
				low := op("Sub", []string{
					row, op("Mul", []string{high, addFloat(g, "table4/sixteen", 16)}),
				})
				row = op("Concat", []string{low, high}, onnx.Attribute{
					Name: "axis", Value: int64(-1),
				})
				row = op("Sub", []string{row, addFloat(g, "table4/zero", 8)})
			}
			op("Mul", []string{row, op("Gather", []string{scales, ids})})
			nodes[len(nodes)-1].Outputs[0] = output
			replaced[i] = nodes
		}
	}
	var nodes []onnx.Node
	for i, n := range g.Nodes {
		if by, ok := replaced[i]; ok {
			nodes = append(nodes, by...)
		} else {
			nodes = append(nodes, n)
		}
	}
	g.Nodes = nodes
	return report, nil
}

func addFloat(g *onnx.Graph, name string, v float32) string {
	if _, ok := g.Constant(name); !ok {
		g.Add(onnx.Initializer{Name: name, DataType: tensor.FP32, Shape: []int64{},
			Data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))})
	}
	return name
}

// whyNoTable returns why a table that is looked up in the given number of nodes stays as it is.
func whyNoTable(g *onnx.Graph, t onnx.Initializer, lookups, bits int) string {
	switch {
	case g.Uses(t.Name) > lookups:
		return fmt.Sprintf("table %s is not only looked up", t.Name)
	case bits == 4 && t.Shape[1]%2 != 0:
		return fmt.Sprintf("the rows of table %s have %d elements, an odd number", t.Name,
			t.Shape[1])
	case t.Shape[1] < 4:
		return fmt.Sprintf("the rows of table %s have %d elements, too few to gain", t.Name,
			t.Shape[1])
	}
	return ""
}

// quantizeTable adds the table's integers and scales to the graph and returns their names. With 4
// bits a byte holds element j of a row, and above it the element half a row after j, each 8 above
// its value.
func quantizeTable(g *onnx.Graph, t onnx.Initializer, bits int) (integers, scales string,
	err error) {
	values, err := g.Floats(t)
	if err != nil {
		return "", "", err
	}
	rows, dim := int(t.Shape[0]), int(t.Shape[1])
	largest, kind, width := float32(127), tensor.Int8, dim
	if bits == 4 {
		largest, kind, width = 7, tensor.Uint8, dim/2
	}
	data := make([]byte, 0, rows*width)
	factors := make([]byte, 0, 4*rows)
	for r := range rows {
		row := values[r*dim:][:dim]
		most := float32(0)
		for _, v := range row {
			most = max(most, abs32(v))
		}
		if math.IsNaN(float64(most)) || math.IsInf(float64(most), 0) {
			return "", "", fmt.Errorf("row %d of table %q holds a weight that is %v", r, t.Name,
				most)
		}
		scale := most / largest
		factors = binary.LittleEndian.AppendUint32(factors, math.Float32bits(scale))
		for j := range width {
			v := nearestMultiple(row[j], scale)
			if bits == 4 {
				v = v + 8 + (nearestMultiple(row[j+width], scale)+8)<<4
			}
			data = append(data, byte(v))
		}
	}
	integers = g.Fresh(fmt.Sprintf("%s/int%d", t.Name, bits))
	scales = g.Fresh(t.Name + "/scale")
	g.Add(onnx.Initializer{Name: integers, DataType: kind,
		Shape: []int64{int64(rows), int64(width)}, Data: data})
	g.Add(onnx.Initializer{Name: scales, DataType: tensor.FP32, Shape: []int64{int64(rows), 1},
		Data: factors})
	return integers, scales, nil
}
