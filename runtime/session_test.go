package runtime_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// floats are little-endian FP32 elements.
func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func ints(values ...int64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// write puts a model and the files beside it into a version's folder of a
// fresh repository and reads it back.
func write(t testing.TB, m *onnx.Model, files map[string][]byte) *models.Version {
	t.Helper()
	repository := t.TempDir()
	dir := filepath.Join(repository, "m", "1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if files == nil {
		files = map[string][]byte{}
	}
	files["model.onnx"] = m.Marshal()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v, err := models.ReadVersion(repository, "m", 1)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The weights of embedding: a dense part of 4 -> 3 and a table of 10 rows.
var (
	denseWeights = func() []float32 {
		w := make([]float32, 4*3)
		for i := range w {
			w[i] = float32(i) - 5
		}
		return w
	}()
	tableRows = func() []float32 {
		w := make([]float32, 10*3)
		for i := range w {
			w[i] = float32(i*i) / 8
		}
		return w
	}()
)

// embedding is score = dense . W + the sum of two rows of a table, the table in
// a file beside the model.
func embedding() (*onnx.Model, map[string][]byte) {
	m := &onnx.Model{
		Name: "embedding",
		Inputs: []onnx.ValueDescription{
			{Name: "dense", DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, 4}},
			{Name: "ids", DataType: tensor.Int64, Shape: []int64{onnx.Dynamic, 2}},
		},
		Outputs: []onnx.ValueDescription{
			{Name: "score", DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, 3}},
		},
		Nodes: []onnx.Node{
			{Op: "MatMul", Name: "dense", Inputs: []string{"dense", "w"}, Outputs: []string{"d"}},
			{Op: "Gather", Name: "gather", Inputs: []string{"table", "ids"}, Outputs: []string{
				"rows",
			}},
			{Op: "ReduceSum", Name: "pool", Inputs: []string{"rows", "axes"}, Outputs: []string{
				"e",
			},
				Attributes: []onnx.Attribute{{Name: "keepdims", Value: int64(0)}}},
			{Op: "Add", Name: "add", Inputs: []string{"d", "e"}, Outputs: []string{"score"}},
		},
		Initializers: []onnx.Initializer{
			{Name: "w", DataType: tensor.FP32, Shape: []int64{4, 3}, Data: floats(denseWeights...)},
			{Name: "table", DataType: tensor.FP32, Shape: []int64{10, 3},
				External: onnx.External{
					Location: "model.onnx.data", Offset: 0, Length: 10 * 3 * 4,
				}},
			{Name: "axes", DataType: tensor.Int64, Shape: []int64{1}, Data: ints(1)},
		},
	}
	return m, map[string][]byte{"model.onnx.data": floats(tableRows...)}
}

func writeEmbedding(t testing.TB) *models.Version {
	m, files := embedding()
	v := write(t, m, files)
	v.Config.RowsIndependent = true
	v.Inputs[1].IDBounds = []int64{10}
	return v
}

// embeddingInputs are inputs that differ from row to row.
func embeddingInputs(batch int) (dense []float32, ids []int64, inputs []tensor.Tensor) {
	for i := range batch {
		for j := range 4 {
			dense = append(dense, float32(i%7)+float32(j)/4)
		}
		ids = append(ids, int64(i%10), int64((i*3+1)%10))
	}
	return dense, ids, []tensor.Tensor{
		must(tensor.Of("dense", dense, int64(batch), 4)),
		must(tensor.Of("ids", ids, int64(batch), 2)),
	}
}

func embeddingScores(dense []float32, ids []int64) []float32 {
	var scores []float32
	for i := range len(dense) / 4 {
		for k := range 3 {
			sum := tableRows[ids[2*i]*3+int64(k)] + tableRows[ids[2*i+1]*3+int64(k)]
			for j := range 4 {
				sum += dense[4*i+j] * denseWeights[3*j+k]
			}
			scores = append(scores, sum)
		}
	}
	return scores
}

func load(t testing.TB, x runtime.Executor, v *models.Version) runtime.Model {
	t.Helper()
	m, err := x.Load(context.Background(), v)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestRun(t *testing.T) {
	x := runtimetest.Open(t)
	for _, independent := range []bool{false, true} {
		v := writeEmbedding(t)
		v.Config.RowsIndependent = independent
		m := load(t, x, v)
		// beyond the first piece, and smaller again
		for _, batch := range []int{1, 2, 3, 16, 17, 1000, 1} {
			dense, ids, inputs := embeddingInputs(batch)
			r, err := m.Run(context.Background(), inputs)
			if err != nil {
				t.Fatal(err)
			}
			want := embeddingScores(dense, ids)
			out := r.Outputs[0]
			if len(r.Outputs) != 1 || out.Name != "score" ||
				!slices.Equal(out.Shape, []int64{int64(batch), 3}) {
				t.Fatalf("batch %d: got %d outputs, the first %q of shape %v", batch,
					len(r.Outputs), out.Name, out.Shape)
			}
			got, err := tensor.Values[float32](out)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if math.Abs(float64(got[i]-want[i])) > 1e-3 {
					t.Fatalf("independent %v, batch %d: element %d is %v, want %v", independent,
						batch, i, got[i], want[i])
				}
			}
			if r.Execution <= 0 {
				t.Errorf("execution took %v", r.Execution)
			}
			r.Release()
			r.Release()
		}
	}
}

// identity has an input and an output of each data type, of equal contents.
// The second dimension is fixed to 2, or dynamic.
func identity(dynamic bool) *onnx.Model {
	m := &onnx.Model{Name: "identity"}
	for _, d := range dataTypes {
		shape := []int64{onnx.Dynamic, 2}
		if dynamic {
			shape[1] = onnx.Dynamic
		}
		in, out := "in_"+string(d), "out_"+string(d)
		m.Inputs = append(m.Inputs, onnx.ValueDescription{Name: in, DataType: d, Shape: shape})
		m.Outputs = append(m.Outputs, onnx.ValueDescription{Name: out, DataType: d, Shape: shape})
		m.Nodes = append(m.Nodes, onnx.Node{
			Op: "Identity", Name: out, Inputs: []string{in}, Outputs: []string{out},
		})
	}
	return m
}

var dataTypes = []tensor.DataType{tensor.Bool, tensor.Uint8, tensor.Uint16, tensor.Uint32,
	tensor.Uint64, tensor.Int8, tensor.Int16,
	tensor.Int32, tensor.Int64, tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64, tensor.Bytes}

// identityInputs hold different bytes, at an offset from an aligned address.
func identityInputs(m *onnx.Model, batch, offset int) []tensor.Tensor {
	var inputs []tensor.Tensor
	for _, p := range m.Inputs {
		n := batch * 2
		data := make([]byte, offset, offset+n*8+64)
		for i := range n {
			if p.DataType == tensor.Bytes {
				s := strings.Repeat("x", i%3)
				data = append(binary.LittleEndian.AppendUint32(data, uint32(len(s))), s...)
				continue
			}
			for range p.DataType.Size() {
				data = append(data, byte(len(data)*7)&1) // 0 or 1: the only bytes of a BOOL
			}
		}
		inputs = append(inputs, tensor.Tensor{
			Name: p.Name, DataType: p.DataType, Shape: []int64{int64(batch), 2},
			Data: data[offset:],
		})
	}
	return inputs
}

func TestRunTypes(t *testing.T) {
	x := runtimetest.Open(t)
	fixed, dynamic := identity(false), identity(true)
	for name, model := range map[string]*onnx.Model{"fixed": fixed, "dynamic": dynamic} {
		m := load(t, x, write(t, model, nil))
		for _, batch := range []int{1, 3, 0} {
			for offset := range 2 {
				inputs := identityInputs(model, batch, offset)
				r, err := m.Run(context.Background(), inputs)
				if err != nil {
					t.Fatalf("%s, batch %d: %v", name, batch, err)
				}
				for i, out := range r.Outputs {
					in := inputs[i]
					if out.DataType != in.DataType || !slices.Equal(out.Shape, in.Shape) ||
						string(out.Data) != string(in.Data) {
						t.Errorf(
							"%s, offset %d: output %s has type %s, shape %v, data %x; want those "+
								"of the input: %s, %v, %x",
							name, offset, out.Name, out.DataType, out.Shape, out.Data, in.DataType,
							in.Shape, in.Data)
					}
					if size := out.DataType.Size(); size > 1 && len(out.Data) > 0 &&
						uintptr(unsafe.Pointer(&out.Data[0]))%uintptr(size) != 0 {
						t.Errorf("%s: output %s is not aligned", name, out.Name)
					}
				}
				r.Release()
			}
		}
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("got error %q, want it to contain %q", err, p)
		}
	}
}

// A model whose output has another number of rows than its inputs.
func TestRunOtherRows(t *testing.T) {
	x := runtimetest.Open(t)
	port := func(name string) []onnx.ValueDescription {
		return []onnx.ValueDescription{{Name: name, DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic, 2}}}
	}
	m := load(t, x, write(t, &onnx.Model{
		Inputs:  port("x"),
		Outputs: port("y"),
		Nodes: []onnx.Node{{Op: "Concat", Inputs: []string{"x", "x"}, Outputs: []string{"y"},
			Attributes: []onnx.Attribute{{Name: "axis", Value: int64(0)}}}},
	}, nil))
	for range 2 {
		r, err := m.Run(context.Background(), []tensor.Tensor{
			must(tensor.Of("x", []float32{1, 2}, 1, 2)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := must(tensor.Values[float32](r.Outputs[0])); !slices.Equal(r.Outputs[0].Shape,
			[]int64{2, 2}) || !slices.Equal(got, []float32{1, 2, 1, 2}) {
			t.Errorf("got %v of shape %v", got, r.Outputs[0].Shape)
		}
		r.Release()
	}
}

func TestStringsWithZeroBytes(t *testing.T) {
	x := runtimetest.Open(t)
	model := &onnx.Model{
		Inputs: []onnx.ValueDescription{{Name: "in", DataType: tensor.Bytes,
			Shape: []int64{onnx.Dynamic}}},
		Outputs: []onnx.ValueDescription{{Name: "out", DataType: tensor.Bytes,
			Shape: []int64{onnx.Dynamic}}},
		Nodes: []onnx.Node{{Op: "Identity", Inputs: []string{"in"}, Outputs: []string{"out"}}},
	}
	m := load(t, x, write(t, model, nil))
	for data, want := range map[string]string{
		"\x02\x00\x00\x00a\x00":            "zero byte",
		"\x02\x00\x00\x00":                 "",
		"\xff\xff\xff\xffabc":              "",
		"\x01\x00\x00":                     "",
		"\x01\x00\x00\x00a\x00":            "1 bytes after",
		"\x00\x00\x00\x00\x00\x00\x00\x00": "4 bytes after",
	} {
		_, err := m.Run(context.Background(), []tensor.Tensor{
			{Name: "in", DataType: tensor.Bytes, Shape: []int64{1}, Data: []byte(data)},
		})
		wantError(t, err, `"in"`, want)
	}
}

func TestLoadErrors(t *testing.T) {
	x := runtimetest.Open(t)
	change := func(f func(m *onnx.Model)) func(*models.Version) error {
		return func(v *models.Version) error {
			m, _ := embedding()
			f(m)
			return os.WriteFile(v.Path, m.Marshal(), 0o644)
		}
	}
	for name, test := range map[string]struct {
		damage func(v *models.Version) error
		want   string
	}{
		"missing":   {func(v *models.Version) error { return os.Remove(v.Path) }, "no such file"},
		"empty":     {func(v *models.Version) error { return os.Truncate(v.Path, 0) }, ""},
		"truncated": {func(v *models.Version) error { return os.Truncate(v.Path, 150) }, ""},
		"garbage": {
			func(v *models.Version) error {
				return os.WriteFile(v.Path, []byte("not a model"), 0o644)
			}, "",
		},
		"folder": {
			func(v *models.Version) error {
				return errors.Join(os.Remove(v.Path), os.Mkdir(v.Path, 0o755))
			}, "regular file",
		},
		"no data": {
			func(v *models.Version) error { return os.Remove(v.Path + ".data") }, "model.onnx.data",
		},
		"short data": {
			func(v *models.Version) error { return os.Truncate(v.Path+".data", 119) },
			"model.onnx.data",
		},
		"empty data": {
			func(v *models.Version) error { return os.Truncate(v.Path+".data", 0) },
			"model.onnx.data",
		},
		"data outside": {
			change(func(m *onnx.Model) {
				m.Initializers[1].External.Location = "../../../../../../../../etc/passwd"
			}), "",
		},
		"data absolute": {
			change(func(m *onnx.Model) { m.Initializers[1].External.Location = "/etc/passwd" }), "",
		},
		"data beyond": {
			change(func(m *onnx.Model) { m.Initializers[1].External.Offset = 1 << 40 }), "",
		},
		"negative offset": {
			change(func(m *onnx.Model) { m.Initializers[1].External.Offset = -8 }), "",
		},
		"unknown op": {
			change(func(m *onnx.Model) { m.Nodes[0].Op = "NoSuchOperator" }), "NoSuchOperator",
		},
		"unknown value": {
			change(func(m *onnx.Model) { m.Nodes[0].Inputs[1] = "nothing" }), "nothing",
		},
		"wrong shapes": {
			change(func(m *onnx.Model) { m.Initializers[0].Shape = []int64{3, 4} }), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := writeEmbedding(t)
			if err := test.damage(v); err != nil {
				t.Fatal(err)
			}
			m, err := x.Load(context.Background(), v)
			if err == nil {
				m.Close()
			}
			wantError(t, err, v.Path, test.want)
			t.Log(err)
		})
	}
}

func TestRunErrors(t *testing.T) {
	x := runtimetest.Open(t)
	m := load(t, x, writeEmbedding(t))
	_, ids, inputs := embeddingInputs(3)
	ids[3] = 10
	_, err := m.Run(context.Background(), inputs)
	wantError(t, err, "m version 1", "index 10 is out of bounds, want -10 to 9")
	ids[3] = 9
	r, err := m.Run(context.Background(), inputs)
	if err != nil {
		t.Fatalf("after a failed run: %v", err)
	}
	r.Release()
}

// slow is a model whose runs take long enough to be cancelled: many products
// with a 256 x 256 matrix.
func slow() *onnx.Model {
	shape := []int64{onnx.Dynamic, 256}
	m := &onnx.Model{
		Inputs:  []onnx.ValueDescription{{Name: "x0", DataType: tensor.FP32, Shape: shape}},
		Outputs: []onnx.ValueDescription{{Name: "x200", DataType: tensor.FP32, Shape: shape}},
		Initializers: []onnx.Initializer{
			{Name: "w", DataType: tensor.FP32, Shape: []int64{256, 256},
				Data: make([]byte, 4*256*256)},
		},
	}
	name := func(i int) string { return "x" + strconv.Itoa(i) }
	for i := range 200 {
		m.Nodes = append(m.Nodes, onnx.Node{
			Op: "MatMul", Name: name(i), Inputs: []string{name(i), "w"}, Outputs: []string{
				name(i + 1),
			},
		})
	}
	return m
}

func slowInputs(batch int) []tensor.Tensor {
	return []tensor.Tensor{must(tensor.Of("x0", make([]float32, 256*batch), int64(batch), 256))}
}

func TestCancelRun(t *testing.T) {
	x := runtimetest.Open(t)
	for _, independent := range []bool{false, true} {
		v := write(t, slow(), nil)
		v.Config.RowsIndependent = independent
		m := load(t, x, v)
		if _, err := m.Run(context.Background(), slowInputs(16)); err != nil { // learns the speed
			t.Fatal(err)
		}
		inputs := slowInputs(8000) // a second or so
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		_, err := m.Run(ctx, inputs)
		cancel()
		if err != context.DeadlineExceeded {
			t.Errorf("independent %v: got error %v, want %v", independent, err,
				context.DeadlineExceeded)
		}
		ctx, cancel = context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		if _, err := m.Run(ctx, inputs); err != context.Canceled {
			t.Errorf("independent %v: got error %v, want %v", independent, err, context.Canceled)
		}
		r, err := m.Run(context.Background(), slowInputs(1))
		if err != nil {
			t.Fatalf("independent %v: after a cancelled run: %v", independent, err)
		}
		r.Release()
	}
}

func TestConcurrentRuns(t *testing.T) {
	x := runtimetest.Open(t)
	m := load(t, x, writeEmbedding(t))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				dense, ids, inputs := embeddingInputs(1 + (g*31+i*7)%100)
				r, err := m.Run(context.Background(), inputs)
				if err != nil {
					t.Error(err)
					return
				}
				got, want := must(tensor.Values[float32](r.Outputs[0])), embeddingScores(dense, ids)
				for j := range want {
					if math.Abs(float64(got[j]-want[j])) > 1e-3 {
						t.Errorf("element %d is %v, want %v", j, got[j], want[j])
						return
					}
				}
				r.Release()
			}
		})
	}
	wg.Wait()
}

func TestRunAllocations(t *testing.T) {
	x := runtimetest.Open(t)
	m := load(t, x, writeEmbedding(t))
	allocs := func(batch int) float64 {
		_, _, inputs := embeddingInputs(batch)
		return testing.AllocsPerRun(100, func() {
			r, err := m.Run(context.Background(), inputs)
			if err != nil {
				t.Fatal(err)
			}
			r.Release()
		})
	}
	few, many := allocs(1), allocs(500)
	if many > few+2 || many > 40 {
		t.Errorf("%v allocations for 500 rows, %v for one", many, few)
	}
}

func TestWarm(t *testing.T) {
	x := runtimetest.Open(t)
	v := writeEmbedding(t)
	v.Config.WarmUp = []int{1, 64, 300}
	m := load(t, x, v)
	lanes := runtime.NewLanes(runtime.LanesConfig{})
	if err := runtime.Warm(context.Background(), lanes, m, v); err != nil {
		t.Fatal(err)
	}
	// beyond the table: the run must fail, so ids are drawn from the bounds
	v.Inputs[1].IDBounds, v.Inputs[1].InferredBounds = []int64{1000}, nil
	wantError(t, runtime.Warm(context.Background(), lanes, m, v), v.Path, "is out of bounds")
	// what fails for a shape that nobody said says so, and leaves out no batch size
	product := onnx.Model{
		Inputs: []onnx.ValueDescription{
			{Name: "x", DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, onnx.Dynamic}},
		},
		Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic, 1}}},
		Initializers: []onnx.Initializer{
			{Name: "w", DataType: tensor.FP32, Shape: []int64{2, 1}, Data: floats(1, 2)},
		},
		Nodes: []onnx.Node{{Op: "MatMul", Inputs: []string{"x", "w"}, Outputs: []string{"y"}}},
	}
	open := write(t, &product, nil)
	var shapes *runtime.ShapeError
	err := runtime.Warm(context.Background(), lanes, load(t, x, open), open)
	if !errors.As(err, &shapes) || !slices.Equal(shapes.Open, []string{"x"}) {
		t.Errorf("got %v, want a ShapeError of x", err)
	}
	wantError(t, err, open.Path, "run batch size 1: ")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := runtime.Warm(ctx, lanes, m, v); !errors.Is(err, context.Canceled) {
		t.Errorf("warm after cancel: %v", err)
	}
}
