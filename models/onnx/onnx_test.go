package onnx

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-serve/muster/api/tensor"
)

// linear is y = xW with its weights embedded.
func linear() *Model {
	return &Model{
		Name:     "linear",
		Producer: "test",
		Inputs: []ValueDescription{{Name: "x", DataType: tensor.FP32, Shape: []int64{Dynamic,
			2}}},
		Outputs: []ValueDescription{{Name: "y", DataType: tensor.FP32, Shape: []int64{Dynamic,
			1}}},
		Nodes: []Node{
			{Op: "MatMul", Name: "mul", Inputs: []string{"x", "w"}, Outputs: []string{"y"}},
		},
		Initializers: []Initializer{
			{Name: "w", DataType: tensor.FP32, Shape: []int64{2, 1}, Data: make([]byte, 8)},
		},
	}
}

func write(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadSignature(t *testing.T) {
	m := linear()
	m.Inputs = append(m.Inputs, ValueDescription{
		Name: "ids", DataType: tensor.Int64, Shape: []int64{Dynamic, 4, Dynamic},
	}, ValueDescription{Name: "scalar", DataType: tensor.FP32, Shape: []int64{}},
		ValueDescription{Name: "any", DataType: tensor.FP32})
	m.Outputs = append(m.Outputs, ValueDescription{Name: "z", DataType: tensor.FP16},
		ValueDescription{
			Name: "each", DataType: tensor.FP32, Shape: []int64{Dynamic, 2, Dynamic},
			Dims: []string{"n", "", "history"},
		})
	m.Nodes[0].Attributes = []Attribute{
		{"a", int64(-3)}, {"b", []int64{1, 2}}, {"c", float32(0.5)}, {"d", "text"},
	}
	got, err := ReadSignature(write(t, m.Marshal()))
	if err != nil {
		t.Fatal(err)
	}
	// the writer's name
	for _, p := range []*ValueDescription{&m.Inputs[0], &m.Inputs[1], &m.Outputs[0]} {
		p.Dims = make([]string, len(p.Shape))
		p.Dims[0] = "batch"
	}
	want := &Signature{
		IRVersion: IRVersion, Producer: "test", Opset: Opset, Inputs: m.Inputs, Outputs: m.Outputs,
		Operators: map[string]bool{"MatMul": true},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Signature{})); diff != "" {
		t.Errorf("signature (-want +got):\n%s", diff)
	}
}

// The model was written by the onnx package (testdata/make.py).
func TestReadSignatureOfAnotherTool(t *testing.T) {
	got, err := ReadSignature("testdata/subgraphs.onnx")
	if err != nil {
		t.Fatal(err)
	}
	want := &Signature{
		IRVersion: 8,
		Producer:  "onnx-helper",
		Opset:     17,
		Domains:   map[string]int64{"com.microsoft": 1},
		Inputs: []ValueDescription{{
			Name: "x", DataType: tensor.FP32, Shape: []int64{Dynamic, 4}, Dims: []string{"n", ""},
		}},
		Outputs: []ValueDescription{{Name: "y", DataType: tensor.FP32}},
		Defaults: []ValueDescription{
			{Name: "flag", DataType: tensor.Bool, Shape: []int64{}},
			{Name: "w", DataType: tensor.FP32, Shape: []int64{4, 2}},
		},
		Data:      []DataFile{{Location: "subgraphs.data", Size: 48}},
		Operators: map[string]bool{"Add": true, "If": true, "MatMul": true},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Signature{})); diff != "" {
		t.Errorf("signature (-want +got):\n%s", diff)
	}
}

// TestReadSignatureOfFunctions: a file that only functions of the model name is one of its files.
// testdata/make.py wrote the model.
func TestReadSignatureOfFunctions(t *testing.T) {
	got, err := ReadSignature("testdata/functions.onnx")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]DataFile{{Location: "functions.data", Size: 32784}},
		got.Data); diff != "" {
		t.Errorf("data files (-want +got):\n%s", diff)
	}
}

// TestDataLocation: tensors whose data ONNX Runtime takes from another file are those of the
// signature, and of Externals, however the file writes the number: protobuf reads 32 bits of an
// enum, and ignores values that it does not know.
func TestDataLocation(t *testing.T) {
	for _, tt := range []struct {
		locations []uint64
		external  bool
	}{
		{nil, false}, {[]uint64{0}, false}, {[]uint64{1}, true},
		{[]uint64{1<<32 + 1}, true}, {[]uint64{1 << 32}, false},
		{[]uint64{1, 7}, true}, {[]uint64{1, 0}, false}, {[]uint64{7}, false},
	} {
		m := linear()
		m.Initializers = nil
		var w encoder
		w.writeInteger(tensorDims, 2)
		w.writeInteger(tensorDims, 1)
		w.writeInteger(tensorDataType, 1)
		w.writeText(tensorName, "w")
		w.writeText(tensorRawData, "8 bytes.")
		for _, entry := range [][2]string{{"location", "w.data"}, {"length", "8"}} {
			w.writeMessage(tensorExternalData, func(e *encoder) {
				e.writeText(entryKey, entry[0])
				e.writeText(entryValue, entry[1])
			})
		}
		for _, v := range tt.locations {
			w.writeInteger(tensorDataLocation, int64(v))
		}
		var e encoder
		fields, err := split(m.Marshal())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fields {
			if f.number == modelGraph {
				e.writeMessage(modelGraph, func(e *encoder) {
					e.b = append(e.b, f.body...)
					e.writeText(graphInitializer, string(w.b))
				})
				continue
			}
			e.b = append(e.b, f.raw...)
		}
		path := write(t, e.b)
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "w.data"), make([]byte, 8),
			0o644); err != nil {
			t.Fatal(err)
		}
		g, err := ReadGraph(path)
		if err != nil {
			t.Fatal(err)
		}
		all, err := g.Externals()
		if err != nil || (len(all) == 1) != tt.external ||
			(len(g.Signature.Data) == 1) != tt.external {
			t.Errorf("%v: got %d external tensors in %v, error %v, want external %v", tt.locations,
				len(all), g.Signature.Data, err, tt.external)
		}
	}
}

// Weights are skipped, not read: a reader that refuses to read them does not
// notice.
func TestReadSkipsWeights(t *testing.T) {
	m := linear()
	weights := bytes.Repeat([]byte{0xAB}, 1<<20)
	m.Initializers[0].Data = weights
	data := m.Marshal()
	start := bytes.Index(data, weights)
	r := &countingReader{r: bytes.NewReader(data)}
	got, err := read(message{source: &source{r: r}, end: int64(len(data))})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Inputs) != 1 || len(got.Outputs) != 1 {
		t.Errorf("got %+v", got)
	}
	if start < 0 || r.bytes > 4*window {
		t.Errorf("read %d bytes of a model of %d (weights at %d), want at most %d", r.bytes,
			len(data), start, 4*window)
	}
}

type countingReader struct {
	r     *bytes.Reader
	bytes int
}

func (c *countingReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.r.ReadAt(p, off)
	c.bytes += n
	return n, err
}

// TestBatchless: a model has a batch dimension if the first one of all its tensors is dynamic.
func TestBatchless(t *testing.T) {
	for _, tt := range []struct {
		in, out []int64
		want    string
	}{
		{[]int64{Dynamic, 2}, []int64{Dynamic, 1}, ""},
		{[]int64{Dynamic, 2}, nil, ""},
		{[]int64{1, 2}, []int64{Dynamic, 1}, `input "x" has shape [1 2] with a fixed first ` +
			`dimension of 1; to serve batches, export the model with it dynamic`},
		{[]int64{Dynamic, 2}, []int64{}, ""},
		{[]int64{}, []int64{Dynamic}, "its inputs have no dimensions"},
		{nil, []int64{Dynamic}, ""},
		{[]int64{Dynamic, 2}, []int64{8, 1}, `output "y" has shape [8 1] with a fixed first ` +
			`dimension of 8`},
	} {
		m := linear()
		m.Inputs[0].Shape, m.Outputs[0].Shape = tt.in, tt.out
		s, err := ReadSignature(write(t, m.Marshal()))
		if err != nil {
			t.Errorf("%v, %v: %v", tt.in, tt.out, err)
			continue
		}
		if got := s.BatchlessReason(); (tt.want == "") != (got == "") ||
			!strings.Contains(got, tt.want) {
			t.Errorf("%v, %v: got %q, want %q", tt.in, tt.out, got, tt.want)
		}
	}
}

func TestReadSignatureErrors(t *testing.T) {
	edit := func(f func(*Model)) []byte {
		m := linear()
		f(m)
		return m.Marshal()
	}
	external := func(e External) []byte {
		return edit(func(m *Model) { m.Initializers[0].External = e })
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty": {nil, "the file is empty"},
		"text": {
			[]byte("version https://git-lfs.github.com/spec/v1\n"), "not a valid ONNX model",
		},
		"no graph":  {[]byte{0x08, 0x08}, "got 0 graphs, expected 1"},
		"truncated": {linear().Marshal()[:60], "are left"},
		"no inputs": {edit(func(m *Model) { m.Inputs = nil }), "no inputs"},
		"no outputs": {edit(func(m *Model) { m.Outputs = nil }),
			"no outputs"},
		"long name": {
			edit(func(m *Model) { m.Inputs[0].Name = strings.Repeat("x", 1025) }),
			"a name of 1025 bytes",
		},
		"outside": {
			external(External{Location: "../w.data", Length: 8}),
			`external data in "../w.data": expected a path within the model's folder`,
		},
		"absolute": {
			external(External{Location: "/etc/passwd", Length: 8}), "within the model's folder",
		},
		"memory of ONNX Runtime": {
			external(External{Location: "*/_ORT_MEM_ADDR_/*", Length: 8}),
			"within the model's folder",
		},
		"missing data": {external(External{Location: "w.data", Length: 8}), "no such file"},
		"negative": {
			external(External{Location: "w.data", Offset: -1, Length: 8}),
			`offset is "-1", expected a number of bytes`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, c.data)
			_, err := ReadSignature(path)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want an error with %q and %s", err, c.want, path)
			}
		})
	}
}

func TestReadSignatureOfShortData(t *testing.T) {
	m := linear()
	m.Initializers[0].External = External{Location: "w.data", Offset: 4096, Length: 8}
	path := write(t, m.Marshal())
	data := filepath.Join(filepath.Dir(path), "w.data")
	for _, size := range []int{4103, 4104} {
		if err := os.WriteFile(data, make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := ReadSignature(path)
		if size == 4104 {
			if err != nil {
				t.Error(err)
			}
		} else if want := "w.data: got 4103 bytes, the model needs 4104"; err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// classifiers are models with maps, as their exporters write them.
func classifiers(t testing.TB) (all [][]byte) {
	for _, name := range []string{"logistic", "forest", "lightgbm"} {
		data, err := os.ReadFile("../../runtime/testdata/" + name + ".onnx")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data)
	}
	return all
}

// TestMaps: a map of probabilities is a tensor in the signature and in the graph, through nodes
// that only pass it on; what something else reads stays a map, and is left out.
func TestMaps(t *testing.T) {
	for i, data := range classifiers(t) {
		path := write(t, data)
		s, err := ReadSignature(path)
		if err != nil || len(s.Outputs) != 2 || len(s.Outputs[1].Labels) < 2 ||
			len(s.Without) != 0 {
			t.Fatalf("%d: %+v, %v", i, s, err)
		}
		g, err := ReadGraph(path)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := g.Marshal(); err != nil {
			t.Error(err)
		} else if again, err := ReadSignature(write(t, b)); err != nil ||
			again.Operators["ZipMap"] || again.Outputs[1].Name != s.Outputs[1].Name ||
			again.Outputs[1].DataType != tensor.FP32 || again.Outputs[1].Labels != nil {
			t.Errorf("%d: written as %+v, %v", i, again, err)
		}
	}
	// sequence encodes the type of an output as a sequence of maps
	sequence := func(name string) []byte {
		var e encoder
		e.writeMessage(graphOutput, func(e *encoder) {
			e.writeText(valueName, name)
			e.writeMessage(valueType, func(e *encoder) { e.writeText(typeSequence, "") })
		})
		return e.b
	}
	zip := Node{Op: "ZipMap", Domain: "ai.onnx.ml", Name: "zip", Inputs: []string{"y"},
		Outputs:    []string{"maps"},
		Attributes: []Attribute{{"classlabels_int64s", []int64{3, -4}}}}
	pass := func(from, to string) Node {
		return Node{Op: "Identity", Name: to, Inputs: []string{from}, Outputs: []string{to}}
	}
	other := Node{Op: "SequenceLength", Name: "n", Inputs: []string{"maps"}, Outputs: []string{"n"}}
	for _, tt := range []struct {
		nodes  []Node
		output string
		want   []string
	}{
		{[]Node{zip}, "maps", []string{"3", "-4"}},
		{[]Node{zip, pass("maps", "a"), pass("a", "b")}, "b", []string{"3", "-4"}},
		{[]Node{zip, other}, "maps", nil},
		{[]Node{zip, pass("maps", "a"), other}, "a", nil},
		{[]Node{pass("a", "b"), pass("b", "a")}, "a", nil},
	} {
		m := linear()
		m.Domains = map[string]int64{"ai.onnx.ml": 3}
		m.Nodes = append(m.Nodes, tt.nodes...)
		var e encoder
		fields, err := split(m.Marshal())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fields {
			if f.number == modelGraph {
				f.raw = nil
				e.writeText(modelGraph, string(f.body)+string(sequence(tt.output)))
			}
			e.b = append(e.b, f.raw...)
		}
		s, err := ReadSignature(write(t, e.b))
		if err != nil {
			t.Errorf("%s: %v", tt.output, err)
			continue
		}
		var got []string
		if len(s.Outputs) == 2 {
			got = s.Outputs[1].Labels
		}
		if !slices.Equal(got, tt.want) || (len(s.Without) == 0) != (tt.want != nil) {
			t.Errorf("%s: labels %q, without %q, want %q", tt.output, got, s.Without, tt.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(linear().Marshal())
	nested, err := os.ReadFile("testdata/subgraphs.onnx")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(nested)
	f.Add(lookups(tensor.Int64, []int64{Dynamic, 4, 2}, map[string][]int64{
		"two": {3, 1}, "at": {1}, "to": {0, -1, 4}, "end": {-1},
	}, nodes(f,
		"a, b = Split(ids, two) axis=1; c = Unsqueeze(a, at); d = Transpose(c) perm=0,2,1,3; "+
			"e = Slice(d, at, end, at, at); g = Concat(b, b) axis=-1; h = Reshape(g, to); "+
			"i = Gather(h, one) axis=1; j = Gather(t10, i); k = Flatten(e) axis=2; "+
			"l = GatherND(t20, k); m = Squeeze(l); n = Cast(j) to=1; y = MatMul(n, m)")...).Marshal())
	for _, classifier := range classifiers(f) {
		f.Add(classifier)
	}
	f.Add([]byte{0x3a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := read(message{source: &source{r: bytes.NewReader(data)}, end: int64(len(data))})
		if (s == nil) == (err == nil) {
			t.Fatalf("got %v and error %v", s, err)
		}
		if err != nil {
			return
		}
		for _, p := range slices.Concat(s.Inputs, s.Outputs, s.Defaults) {
			if !p.DataType.Valid() || slices.ContainsFunc(p.Shape,
				func(d int64) bool { return d < Dynamic }) || len(p.Labels) > maxLabels {
				t.Errorf("port %+v", p)
			}
		}
		if len(s.Inputs) == 0 || len(s.Outputs) == 0 {
			t.Errorf("%d inputs and %d outputs", len(s.Inputs), len(s.Outputs))
		}
		for _, d := range s.Data {
			if !filepath.IsLocal(d.Location) || d.Size < 0 {
				t.Errorf("data %+v", d)
			}
		}
	})
}
