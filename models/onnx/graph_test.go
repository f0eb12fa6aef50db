package onnx

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/tensor"
)

// unknown appends a field that this package does not know to a message.
func unknown(b []byte) []byte {
	b = protowire.AppendTag(b, 777, protowire.BytesType)
	return protowire.AppendString(b, "kept")
}

// A model that is read and written without a change has the same bytes, but for the place of its
// external data.
func TestGraphKeepsBytes(t *testing.T) {
	dir := t.TempDir()
	weights := make([]byte, 4*6)
	weights[3] = 0x40 // 2, 0, 0, ...
	m := Model{
		Name:    "g",
		Inputs:  []ValueDescription{{Name: "x", DataType: tensor.FP32, Shape: []int64{Dynamic, 2}}},
		Outputs: []ValueDescription{{Name: "y", DataType: tensor.FP32, Shape: []int64{Dynamic, 3}}},
		Nodes: []Node{
			{Op: "MatMul", Name: "a", Inputs: []string{"x", "w"}, Outputs: []string{"h"}},
			{Op: "Foo", Domain: "my.ops", Name: "b", Inputs: []string{"h"}, Outputs: []string{"y"},
				Attributes: []Attribute{
					{"alpha", float32(.5)}, {"axes", []int64{1, -1}}, {"mode", "x"}, {
						"n", int64(3),
					},
				}},
		},
		Initializers: []Initializer{
			{Name: "w", DataType: tensor.FP32, Shape: []int64{2, 3}, Data: weights},
			{Name: "idle", DataType: tensor.FP32, Shape: []int64{0}},
		},
	}
	b := unknown(m.Marshal())
	path := filepath.Join(dir, "m.onnx")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	g, err := ReadGraph(path)
	if err != nil {
		t.Fatal(err)
	}
	n := g.Nodes[1]
	if n.Domain != "my.ops" || n.Standard() || n.Attribute("alpha") != float32(.5) ||
		n.Attribute("n") != int64(3) || n.Attribute("mode") != "x" || n.Attribute("other") != nil {
		t.Errorf("got node %+v", n)
	}
	out := filepath.Join(dir, "out.onnx")
	if err := g.Write(out); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, written) {
		t.Errorf("got %x, want %x", written, b)
	}
	if _, err := os.Stat(out + ".data"); err == nil {
		t.Error("a data file was written, though the model has none")
	}

	// A change leaves the unknown field, and what is not used any more goes.
	g.Nodes = g.Nodes[1:]
	g.Nodes[0].SetInput(0, "x")
	g.Nodes[0].SetOutput(0, "z")
	if err := g.Write(out); err != nil {
		t.Fatal(err)
	}
	if written, err = os.ReadFile(out); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(written, unknown(nil)) || bytes.Contains(written, weights) ||
		!bytes.Contains(written, []byte("idle")) {
		t.Errorf("got %q", written)
	}
	if g, err = ReadGraph(out); err != nil || g.Nodes[0].Inputs[0] != "x" ||
		g.Nodes[0].Outputs[0] != "z" {
		t.Errorf("got error %v", err)
	}
}

// What a file says of the types of values is removed for one type, and stays for others.
func TestUndeclare(t *testing.T) {
	const path = "../../runtime/kernels/testdata/sum-dynamo.onnx"
	declared := func(g *Graph) (n int) {
		for _, node := range g.Nodes {
			for _, output := range node.Outputs {
				if _, ok := g.Rank(output); ok {
					n++
				}
			}
		}
		return n
	}
	g, err := ReadGraph(path)
	if err != nil {
		t.Fatal(err)
	}
	before := declared(g)
	g.Undeclare(tensor.Int64)
	integers := declared(g)
	g.Undeclare(tensor.FP32)
	if floats := declared(g); before != len(g.Nodes) || integers != before-3 || floats != 1 {
		t.Errorf("got ranks of %d values of %d, of %d without integers, of %d without floats",
			before, len(g.Nodes), integers, floats)
	}
}

// External data in functions moves into the one file too.
func TestGraphMovesDataOfFunctions(t *testing.T) {
	g, err := ReadGraph("testdata/functions.onnx")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out.onnx")
	if err := g.Write(out); err != nil {
		t.Fatal(err)
	}
	s, err := ReadSignature(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Data) != 1 || s.Data[0].Location != "out.onnx.data" || s.Data[0].Size < 32784 {
		t.Errorf("got data files %v, want out.onnx.data alone", s.Data)
	}
}

// External data, also that of nested graphs, moves into one file, and every tensor keeps its bytes.
func TestGraphMovesData(t *testing.T) {
	g, err := ReadGraph("testdata/subgraphs.onnx")
	if err != nil {
		t.Fatal(err)
	}
	w, ok := g.Constant("w")
	if !ok {
		t.Fatal("no constant w")
	}
	values, err := g.Floats(w)
	if err != nil || len(values) != 8 || values[7] != 1 {
		t.Fatalf("got %v and error %v, want 8 ones", values, err)
	}
	out := filepath.Join(t.TempDir(), "out.onnx")
	if err := g.Write(out); err != nil {
		t.Fatal(err)
	}
	s, err := ReadSignature(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Data) != 1 || s.Data[0].Location != "out.onnx.data" {
		t.Errorf("got data files %v, want out.onnx.data alone", s.Data)
	}
	data, err := os.ReadFile(out + ".data")
	if err != nil {
		t.Fatal(err)
	}
	original, err := os.ReadFile("testdata/subgraphs.data")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{original[:32], original[32:40], original[40:]} {
		if !bytes.Contains(data, part) {
			t.Errorf("the data file lacks %x", part)
		}
	}
	again := filepath.Join(t.TempDir(), "out.onnx")
	if g, err = ReadGraph(out); err != nil {
		t.Fatal(err)
	}
	if err := g.Write(again); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", ".data"} {
		a, err := os.ReadFile(out + suffix)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(again + suffix)
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%q differs when it is written again, error %v", suffix, err)
		}
	}
}

func TestGraphFaults(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{
		"missing.onnx": "no such file", "empty.onnx": "empty",
		"text.onnx": "not a valid ONNX model",
	} {
		path := filepath.Join(dir, name)
		if name == "empty.onnx" {
			_ = os.WriteFile(path, nil, 0o644)
		} else if name == "text.onnx" {
			_ = os.WriteFile(path, []byte("hello there"), 0o644)
		}
		_, err := ReadGraph(path)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: got error %v, want one with %q", name, err, want)
		}
	}
}

// TestDamagedConstants: a constant whose elements are not what its shape and type say is an error,
// also where the shape is that of more bytes than a number can say, or than any machine has. An
// agent reads constants of every model that it loads.
func TestDamagedConstants(t *testing.T) {
	constant := func(elements int64, d tensor.DataType, data func(*encoder)) []byte {
		var e encoder
		e.writeInteger(tensorDims, elements)
		e.writeInteger(tensorDataType, int64(elementNumber(d)))
		e.writeText(tensorName, "w")
		data(&e)
		return e.b
	}
	external := func(e *encoder) {
		External{Location: "w.data", Length: 8}.encode(e)
		e.writeInteger(tensorDataLocation, locationExternal)
	}
	for _, c := range []struct {
		name     string
		constant []byte
		want     string
	}{
		{"a float of another wire type", constant(1, tensor.FP32, func(e *encoder) {
			e.writeInteger(tensorFloatData, 1)
		}), "field 4 has wire type 0, expected 32-bit floats"},
		{"too many elements", constant(1<<62, tensor.FP32, func(*encoder) {}),
			"too many elements"},
		{"more than is in another file", constant(1<<40, tensor.Int64, external),
			"got 8 bytes, expected at least 8796093022208"},
		{"too many in another file", constant(1<<61, tensor.Int64, external),
			"too many elements"},
	} {
		g := &Graph{dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(g.dir, "w.data"), make([]byte, 8), 0o644); err != nil {
			t.Fatal(err)
		}
		w, err := readInitializer(c.constant)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if w.DataType == tensor.FP32 {
			_, err = g.Floats(w)
		} else {
			_, err = g.Rows(w, 0)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestTwofoldConstant: reading a constant that has its elements both raw and as numbers changes
// nothing of the model.
func TestTwofoldConstant(t *testing.T) {
	var e encoder
	e.writeInteger(tensorDims, 3)
	e.writeInteger(tensorDataType, int64(elementNumber(tensor.FP32)))
	e.writeText(tensorRawData, "raw.")
	e.writeText(tensorFloatData, "12345678")
	e.writeText(tensorName, "w")
	before := bytes.Clone(e.b)
	w, err := readInitializer(e.b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&Graph{}).Floats(w); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(e.b, before) {
		t.Errorf("the model became\n%q, it was\n%q", e.b, before)
	}
}

// FuzzGraph: a model that can be read can be written, and reads as the same.
func FuzzGraph(f *testing.F) {
	b, err := os.ReadFile("testdata/subgraphs.onnx")
	if err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile("testdata/subgraphs.data")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, classifier := range classifiers(f) {
		f.Add(classifier)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		path, out := filepath.Join(dir, "m.onnx"), filepath.Join(dir, "out.onnx")
		_ = os.WriteFile(filepath.Join(dir, "subgraphs.data"), data, 0o644)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		g, err := ReadGraph(path)
		if err != nil {
			return
		}
		for _, t := range g.initializers {
			_, _ = g.Floats(t)
			_, _ = g.Rows(t, 1)
		}
		for _, p := range g.Signature.Defaults {
			_, _ = g.Default(p.Name)
		}
		if g.Write(out) != nil {
			return // external data that is not where the model says
		}
		again, err := ReadGraph(out)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if len(again.Nodes) != len(g.Nodes) || len(again.initializers) != len(g.initializers) {
			t.Errorf("got %d nodes and %d initializers, want %d and %d", len(again.Nodes),
				len(again.initializers), len(g.Nodes), len(g.initializers))
		}
	})
}

// TestExternals: the initializers in other files are listed with where their elements are.
func TestExternals(t *testing.T) {
	g, err := ReadGraph("testdata/subgraphs.onnx")
	if err != nil {
		t.Fatal(err)
	}
	all, err := g.Externals()
	if err != nil || len(all) != 1 || all[0].Name != "w" || all[0].DataType != tensor.FP32 ||
		!slices.Equal(all[0].Shape, []int64{4, 2}) ||
		all[0].External != (External{"subgraphs.data", 0, 32}) {
		t.Errorf("got %+v, %v", all, err)
	}
}
