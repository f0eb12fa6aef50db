package onnx

import (
	"fmt"
	"slices"
	"strconv"
)

// Exporters of classifiers (skl2onnx, onnxmltools, CatBoost) end a model with ZipMap by default: it
// turns the matrix of probabilities into a map for each row, from the label of a class to its
// probability. No protocol of servers has such a type. The matrix that the maps are made of takes
// their place, under the name of the output.

// floatElement is the TensorProto.DataType of what a ZipMap reads.
const floatElement = 1

// maxLabels bounds the columns of a matrix with labels. Chosen: beyond any number of classes.
const maxLabels = 1 << 16

// A mapNode is a node that makes or passes on a sequence of maps.
type mapNode struct {
	input  string
	labels []string // of a ZipMap; nil for an Identity
}

// readMaps returns the labels of the outputs that are sequences of maps made of a matrix, by the
// names of the outputs, and notes the values between in the signature. m is the model.
func (r *reader) readMaps(m message) (map[string][]string, error) {
	if !r.signature.Operators["ZipMap"] ||
		!slices.ContainsFunc(r.outputs, func(v value) bool { return v.kind == "sequence" }) {
		return nil, nil
	}
	made := map[string]mapNode{}   // by what the node makes
	other := map[string]bool{}     // values that other nodes read
	users := map[string][]string{} // what nodes of made make of a value
	err := m.eachField(func(f field) error {
		if f.number != modelGraph {
			return nil
		}
		graph, err := f.readMessage()
		if err != nil {
			return err
		}
		return graph.eachField(func(f field) error {
			if f.number != graphNode {
				return nil
			}
			return readMapNode(f, made, users, other)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("not a valid ONNX model: %w", err)
	}
	found := map[string][]string{}
	for _, v := range r.outputs {
		from := v.name
		for range deepest { // through nodes that only pass on
			n, ok := made[from]
			if !ok {
				break
			}
			if n.labels == nil {
				from = n.input
				continue
			}
			if values, ok := onlyPassedOn(from, users, other); ok {
				found[v.name] = n.labels
				if r.signature.Maps == nil {
					r.signature.Maps = map[string]bool{}
				}
				for _, value := range values {
					r.signature.Maps[value] = true
				}
			}
			break
		}
	}
	return found, nil
}

// onlyPassedOn returns the values that hold what from holds, from included, and whether no node
// does anything else with them: they may change their type.
func onlyPassedOn(from string, users map[string][]string, other map[string]bool) ([]string, bool) {
	values := []string{from}
	for i := 0; i < len(values) && i < deepest; i++ {
		if other[values[i]] {
			return nil, false
		}
		values = append(values, users[values[i]]...)
	}
	return values, len(values) <= deepest
}

func readMapNode(f field, made map[string]mapNode, users map[string][]string,
	other map[string]bool) error {
	m, err := f.readMessage()
	if err != nil {
		return err
	}
	var op, domain string
	var inputs, outputs, labels []string
	err = m.eachField(func(f field) (err error) {
		var name string
		switch f.number {
		case nodeOpType:
			op, err = f.readText()
		case nodeDomain:
			domain, err = f.readText()
		case nodeInput:
			name, err = f.readText()
			inputs = append(inputs, name)
		case nodeOutput:
			name, err = f.readText()
			outputs = append(outputs, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	isMap := op == "ZipMap" && domain == "ai.onnx.ml"
	passes := op == "Identity" && (domain == "" || domain == "ai.onnx")
	if isMap {
		err = m.eachField(func(f field) error {
			if f.number != nodeAttribute {
				return nil
			}
			more, err := readLabels(f)
			labels = append(labels, more...)
			return err
		})
	}
	if err != nil || len(inputs) != 1 || len(outputs) != 1 || !isMap && !passes ||
		isMap && (len(labels) == 0 || len(labels) > maxLabels) {
		for _, in := range inputs {
			other[in] = true
		}
		return err
	}
	made[outputs[0]] = mapNode{inputs[0], labels}
	users[inputs[0]] = append(users[inputs[0]], outputs[0])
	return nil
}

// readLabels returns the labels in an attribute of a ZipMap: texts, or whole numbers as text.
func readLabels(f field) (labels []string, err error) {
	m, err := f.readMessage()
	if err != nil {
		return nil, err
	}
	err = m.eachField(func(f field) error {
		switch f.number {
		case attributeInts:
			numbers, _, err := f.readInts()
			for _, n := range numbers {
				labels = append(labels, strconv.FormatInt(n, 10))
			}
			return err
		case attributeStrings:
			text, err := f.readText()
			labels = append(labels, text)
			return err
		}
		return nil
	})
	return labels, err
}

// replaceMaps makes tensors of the values that stand for sequences of maps.
func (g *Graph) replaceMaps() {
	maps := g.Signature.Maps
	if len(maps) == 0 {
		return
	}
	for i, n := range g.Nodes {
		if n.Op == "ZipMap" && len(n.Outputs) == 1 && maps[n.Outputs[0]] {
			g.Nodes[i] = Node{Op: "Identity", Name: n.Name, Inputs: n.Inputs, Outputs: n.Outputs}
		}
	}
	var kept []wireField
	for _, f := range g.graph {
		if f.number == graphOutput || f.number == graphValueInfo {
			if name, _ := nameOf(f.body, valueName); maps[name] { // read has split it before
				if f.number == graphValueInfo {
					continue
				}
				var e encoder
				e.writeMessage(graphOutput, ValueDescription{Name: name,
					DataType: elementTypes[floatElement]}.encode)
				f.raw, f.body = e.b, nil
			}
		}
		kept = append(kept, f)
	}
	g.graph = kept
}
