package variants_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/models/variants"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// generate writes a small model of the zoo to a new repository.
func generate(t *testing.T, model string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if _, err := zoo.Generate(t.Context(), dir, model,
		zoo.Options{Scale: zoo.Small, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newest(t testing.TB, dir, model string) *models.Version {
	t.Helper()
	v, err := models.ReadNewest(dir, model)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// draw makes random inputs within the id bounds.
func draw(t testing.TB, v *models.Version, rows int) []tensor.Tensor {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	var all []tensor.Tensor
	for _, in := range v.Inputs {
		shape := slices.Clone(in.Shape)
		shape[0] = int64(rows)
		n, err := tensor.Elements(shape)
		if err != nil {
			t.Fatal(err)
		}
		var x tensor.Tensor
		if in.DataType == tensor.FP32 {
			values := make([]float32, n)
			for i := range values {
				values[i] = float32(random.NormFloat64())
			}
			x, err = tensor.Of(in.Name, values, shape...)
		} else {
			values := make([]int64, n)
			inner := n / rows / int(shape[1])
			for i := range values {
				values[i] = random.Int64N(in.IDBounds[i/inner%int(shape[1])])
			}
			x, err = tensor.Of(in.Name, values, shape...)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	return all
}

// slice takes the rows [first, last) of inputs.
func slice(all []tensor.Tensor, first, last int) []tensor.Tensor {
	var some []tensor.Tensor
	for _, x := range all {
		row := len(x.Data) / int(x.Shape[0])
		shape := slices.Clone(x.Shape)
		shape[0] = int64(last - first)
		some = append(some, tensor.Tensor{
			Name: x.Name, DataType: x.DataType, Shape: shape, Data: x.Data[first*row : last*row],
		})
	}
	return some
}

// run returns the values of all outputs.
func run(t *testing.T, ort *runtime.ONNX, v *models.Version, inputs []tensor.Tensor) []float32 {
	t.Helper()
	m, err := ort.Load(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	return values(t, m, inputs)
}

func values(t *testing.T, m runtime.Model, inputs []tensor.Tensor) []float32 {
	t.Helper()
	r, err := m.Run(t.Context(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	var all []float32
	for _, o := range r.Outputs {
		x, err := tensor.Values[float32](o)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x...)
	}
	return all
}

// bytesOf is the size of the files of a model's first version.
func bytesOf(t *testing.T, dir, model string) int64 {
	t.Helper()
	var n int64
	for _, name := range []string{"model.onnx", "model.onnx.data"} {
		if info, err := os.Stat(filepath.Join(dir, model, "1", name)); err == nil {
			n += info.Size()
		}
	}
	return n
}

func check(ort *runtime.ONNX) variants.Check {
	return func(ctx context.Context, v *models.Version) error {
		m, err := ort.Load(ctx, v)
		if err != nil {
			return err
		}
		return m.Close()
	}
}

// Variants of the zoo's models run, with answers close to the model's, and are smaller.
func TestMake(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and starts no goroutine")
	}
	ort := runtimetest.Open(t)
	for _, tt := range []struct {
		model string
		kind  variants.Kind
		name  string
		bytes float64 // at most, as a share of the model's
		off   float64 // root of the mean squared difference of answers, at most
	}{
		{"wnd", "int8", "wnd-int8", .5, .01},
		{"wnd", "table8", "wnd-table8", .95, .002},
		{"wnd", "table4", "wnd-table4", .95, .03},
		{"wnd", "int8+table4", "wnd-int8-table4", .3, .04},
		{"wnd", "lowrank:64", "wnd-lowrank64", .5, .3},
		{"rm2", "lookups:1/2", "rm2-lookups1of2", 1.01, .4},
		{"rm2", "table8", "rm2-table8", .6, .002},
		{"ncf", "int8", "ncf-int8", .5, .03},
		{"mtwnd", "int8", "mtwnd-int8", .5, .02},
		{"dien", "int8", "dien-int8", .99, .03},
		{"rm2", "table8+fp16", "rm2-table8-fp16", .35, .002},
		{"wnd", "table4+fp16", "wnd-table4-fp16", .48, .03},
		{"rm3", "lowrank:32+fp16", "rm3-lowrank32-fp16", .3, .3},
		{"rm2", "lookups:1/2+fp16", "rm2-lookups1of2-fp16", .52, .4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := generate(t, tt.model)
			made, err := variants.Make(t.Context(), dir, tt.model, tt.kind,
				variants.Options{Family: "all", Check: check(ort)})
			if err != nil {
				t.Fatal(err)
			}
			if made.Name != tt.name || !made.Written {
				t.Fatalf("got %+v, want %s written", made, tt.name)
			}
			before, after := newest(t, dir, tt.model), newest(t, dir, tt.name)
			families, apart := models.Families([]*models.Version{before, after})
			if len(apart) > 0 || len(families) != 1 || len(families[0].Variants) != 2 {
				t.Errorf("got families %v and apart %v, want one of two variants", families, apart)
			}
			if a, b := bytesOf(t, dir, tt.model), bytesOf(t, dir, tt.name); float64(b) > tt.bytes*
				float64(a) {
				t.Errorf("got %d bytes, want at most %v of %d", b, tt.bytes, a)
			}
			inputs := draw(t, before, 300)
			want, got := run(t, ort, before, inputs), run(t, ort, after, inputs)
			sum, differ := 0.0, 0
			for i := range want {
				d := float64(got[i]) - float64(want[i])
				sum += d * d
				if d != 0 {
					differ++
				}
			}
			off := math.Sqrt(sum / float64(len(want)))
			t.Logf("off by %.5f, %d of %d answers differ, %d bytes of %d, left: %v", off, differ,
				len(want), bytesOf(t, dir, tt.name), bytesOf(t, dir, tt.model), made.Report.Left)
			if !(off <= tt.off) || differ == 0 {
				t.Errorf("answers are off by %v, %d differ; want more than 0 and at most %v", off,
					differ, tt.off)
			}
		})
	}
}

// An item's answer does not depend on the other items of its batch, so that batches may be split
// and merged. With one scale for a batch, as DynamicQuantizeLinear has it, it would.
func TestRowsIndependent(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and starts no goroutine")
	}
	ort := runtimetest.Open(t)
	dir := generate(t, "wnd")
	if _, err := variants.Make(t.Context(), dir, "wnd", "int8+table8",
		variants.Options{Family: "all"}); err != nil {
		t.Fatal(err)
	}
	v := newest(t, dir, "wnd-int8-table8")
	m, err := ort.Load(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	inputs := draw(t, v, 64)
	whole := values(t, m, inputs)
	var parts []float32
	for _, cut := range [][2]int{{0, 1}, {1, 20}, {20, 64}} {
		parts = append(parts, values(t, m, slice(inputs, cut[0], cut[1]))...)
	}
	for i := range whole {
		if d := math.Abs(float64(whole[i] - parts[i])); d > 1e-6 {
			t.Errorf("item %d: got %v in a batch of 64, %v in a smaller one", i, whole[i], parts[i])
		}
	}
}

// write writes a model of a layer [16, 8] between x and y to dir/m.onnx.
func write(t *testing.T, dir string, change func(*onnx.Model)) string {
	t.Helper()
	weights := make([]byte, 0, 4*16*8)
	for i := range 16 * 8 {
		weights = binary.LittleEndian.AppendUint32(weights,
			math.Float32bits(float32(i%7)-3+float32(i)/100))
	}
	m := onnx.Model{
		Name: "m",
		Inputs: []onnx.ValueDescription{
			{Name: "x", DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, 16}},
		},
		Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic, 8}}},
		Nodes: []onnx.Node{{Op: "MatMul", Inputs: []string{"x", "w"}, Outputs: []string{"y"}}},
		Initializers: []onnx.Initializer{
			{Name: "w", DataType: tensor.FP32, Shape: []int64{16, 8}, Data: weights},
		},
	}
	if change != nil {
		change(&m)
	}
	path := filepath.Join(dir, "m.onnx")
	if err := os.WriteFile(path, m.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// files lists a folder.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A user's file is quantised into another one. A second time needs overwrite.
func TestQuantize(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and starts no goroutine")
	}
	ort := runtimetest.Open(t)
	dir := t.TempDir()
	from, to := write(t, dir, nil), filepath.Join(dir, "m-int8.onnx")
	r, err := variants.Quantize(t.Context(), from, to, "int8", false, check(ort))
	if err != nil || r.Changed != 1 || len(r.Left) != 0 {
		t.Fatalf("got %+v and error %v, want one layer changed", r, err)
	}
	before, err := models.FileVersion(from)
	if err != nil {
		t.Fatal(err)
	}
	after, err := models.FileVersion(to)
	if err != nil {
		t.Fatal(err)
	}
	inputs := draw(t, before, 50)
	want, got := run(t, ort, before, inputs), run(t, ort, after, inputs)
	for i := range want {
		if math.Abs(float64(got[i]-want[i])) > .4 { // weights are off by 1/128 of 3, in 16 sums
			t.Errorf("answer %d: got %v, want %v", i, got[i], want[i])
		}
	}
	if slices.Equal(got, want) {
		t.Error("no answer changed")
	}
	if _, err := variants.Quantize(t.Context(), from, to, "int8", false, nil); !errors.Is(err,
		models.ErrExists) {
		t.Errorf("over a file: got error %v, want %v", err, models.ErrExists)
	}
	if _, err := variants.Quantize(t.Context(), from, to, "int8", true, nil); err != nil {
		t.Errorf("over a file, overwriting: %v", err)
	}
	if got, want := files(t, dir), []string{"m-int8.onnx", "m.onnx"}; !slices.Equal(got, want) {
		t.Errorf("got files %v, want %v", got, want)
	}
}

// What cannot be quantised gives an error that says why, and leaves nothing.
func TestQuantizeFaults(t *testing.T) {
	ort := runtimetest.Open(t)
	for name, tt := range map[string]struct {
		kind   variants.Kind
		change func(*onnx.Model)
		want   string
	}{
		"kind": {"int7", nil,
			`variant "int7": expected int8, table8, table4, lowrank:R`},
		"rank": {"lowrank:0", nil,
			`got rank "0", expected a whole number of at least 1`},
		"share": {"lookups:3/2", nil,
			`got share "3/2", expected a fraction above 0 and below 1`},
		"share too small": {"lookups:1e-100", nil,
			`got share "1e-100", expected a fraction above 0`},
		"fp16 and int8": {"int8+fp16", nil,
			`variant "int8+fp16": int8 gains on CPUs and fp16 on GPUs`},
		"fp16 not last": {"fp16+table8", nil,
			`variant "fp16+table8": fp16 leaves no FP32 weights`},
		"fp16 of what": {"fp16:2", nil, `variant "fp16:2": expected int8, table8`},
		"too large": {"fp16", func(m *onnx.Model) {
			binary.LittleEndian.PutUint32(m.Initializers[0].Data, math.Float32bits(-65520))
		}, `tensor "w" holds -65520, and FP16 at most 65504`},
		"too small": {"fp16", func(m *onnx.Model) {
			m.Initializers = append(m.Initializers, onnx.Initializer{Name: "epsilon",
				DataType: tensor.FP32, Shape: []int64{},
				Data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(1e-12))})
			m.Nodes[0].Outputs[0] = "h"
			m.Nodes = append(m.Nodes,
				onnx.Node{Op: "Add", Inputs: []string{"h", "epsilon"}, Outputs: []string{"y"}})
		}, `tensor "epsilon" holds at most 1e-12, too little for FP16 to keep it`},
		"no kernel": {"fp16", func(m *onnx.Model) {
			m.Nodes[0].Outputs[0] = "h"
			m.Nodes = append(m.Nodes, onnx.Node{Op: "DynamicQuantizeLinear", Name: "q",
				Inputs: []string{"h"}, Outputs: []string{"integers", "scale", "zero"}})
		}, "DynamicQuantizeLinear q: it computes with FP32, and is no operator that fp16 knows"},
		"other domain": {"fp16", func(m *onnx.Model) {
			m.Nodes[0].Domain = "com.microsoft"
		}, "MatMul the node of y: it computes with FP32, and is no operator that fp16 knows"},
		// An id of 2049 would be 2048, and one above 65504 none.
		"ids in floats": {"fp16", func(m *onnx.Model) {
			m.Nodes[0].Outputs[0] = "h"
			m.Nodes = append(m.Nodes,
				onnx.Node{Op: "Cast", Inputs: []string{"x"}, Outputs: []string{"ids"},
					Attributes: []onnx.Attribute{{Name: "to", Value: int64(7)}}},
				onnx.Node{Op: "Gather", Inputs: []string{"w", "ids"}, Outputs: []string{"rows"}},
				onnx.Node{Op: "ReduceSum", Inputs: []string{"rows", "axes"},
					Outputs:    []string{"sum"},
					Attributes: []onnx.Attribute{{Name: "keepdims", Value: int64(0)}}},
				onnx.Node{Op: "Add", Inputs: []string{"h", "sum"}, Outputs: []string{"y"}})
			m.Initializers = append(m.Initializers, onnx.Initializer{Name: "axes",
				DataType: tensor.Int64, Shape: []int64{1}, Data: []byte{1, 0, 0, 0, 0, 0, 0, 0}})
		},
			"Cast the node of ids: it makes whole numbers of FP32, which FP16 does not hold above 2048"},
		"nothing in FP32": {"fp16", func(m *onnx.Model) {
			m.Inputs[0].DataType, m.Outputs[0].DataType = tensor.FP64, tensor.FP64
			m.Initializers[0].DataType, m.Initializers[0].Shape = tensor.FP64, []int64{8, 8}
		}, "nothing that fp16 changes"},
		"tables":  {"table8", nil, "nothing that table8 changes: it has no MatMul, Gemm or Gather"},
		"lookups": {"lookups:1/2", nil, "no input of ids with several lookups"},
		"rank above": {"lowrank:9", nil,
			"nothing that lowrank:9 changes: MatMul the node of y: its 16 x 8 weights are fewer"},
		"rank far above": {"lowrank:9223372036854775807", nil, "its 16 x 8 weights are fewer"},
		"few": {"int8", func(m *onnx.Model) {
			m.Initializers[0].Shape = []int64{128, 1}
			m.Inputs[0].Shape[1], m.Outputs[0].Shape[1] = 128, 1
		}, "nothing that int8 changes: MatMul the node of y: its 128 x 1 weights are too few to " +
			"gain"},
		"NaN": {"int8", func(m *onnx.Model) {
			binary.LittleEndian.PutUint32(m.Initializers[0].Data,
				math.Float32bits(float32(math.NaN())))
		}, `tensor "w" holds a weight that is NaN`},
		"truncated": {"int8", func(m *onnx.Model) {
			m.Initializers[0].Data = m.Initializers[0].Data[:8]
		}, `tensor "w": got 8 bytes, expected 512 for shape [16 8]`},
		// It has a layer, which is quantised, and an operator that there is not.
		"refused": {"int8", func(m *onnx.Model) {
			m.Nodes[0].Outputs[0] = "h"
			m.Nodes = append(m.Nodes,
				onnx.Node{Op: "NoSuchOperator", Inputs: []string{"h"}, Outputs: []string{"y"}})
		}, "ONNX Runtime refuses the model itself: "},
		"fixed batch": {"int8", func(m *onnx.Model) { m.Inputs[0].Shape[0] = 1 },
			`input "x" has shape [1 16] with a fixed first dimension`},
	} {
		dir := t.TempDir()
		from := write(t, dir, tt.change)
		_, err := variants.Quantize(t.Context(), from, filepath.Join(dir, "out.onnx"), tt.kind,
			false,
			check(ort))
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			!strings.Contains(err.Error(), "quantize "+from) {
			t.Errorf("%s: got error %v, want one with %q", name, err, tt.want)
		}
		if got := files(t, dir); !slices.Equal(got, []string{"m.onnx"}) {
			t.Errorf("%s: left %v, want m.onnx alone", name, got)
		}
	}
}

// A model that ONNX Runtime refuses does not appear in the repository, nor does its family.
func TestMakeRefused(t *testing.T) {
	dir := generate(t, "wnd")
	refuse := func(_ context.Context, v *models.Version) error {
		if v.Model == "wnd" {
			return nil
		}
		return errors.New("no such operator")
	}
	_, err := variants.Make(t.Context(), dir, "wnd", "int8",
		variants.Options{Family: "all", Check: refuse})
	if err == nil || !strings.Contains(err.Error(), "variant int8 of model wnd") ||
		!strings.Contains(err.Error(), "refuses what was made, so nothing is written: no such") {
		t.Errorf("got error %v", err)
	}
	if got := files(t, dir); !slices.Equal(got, []string{"wnd"}) {
		t.Errorf("left %v, want wnd alone", got)
	}
	if f := newest(t, dir, "wnd").Config.Family; f != "" {
		t.Errorf("got family %q, want none", f)
	}
	for _, family := range []string{"", "wnd"} {
		if _, err := variants.Make(t.Context(), dir, "wnd", "int8",
			variants.Options{Family: family}); err == nil ||
			!strings.Contains(err.Error(), "family") {
			t.Errorf("family %q: got error %v", family, err)
		}
	}
}

// The same variant has the same bytes, and is there already the second time.
func TestMakeAgain(t *testing.T) {
	dir := generate(t, "wnd")
	o := variants.Options{Family: "all"}
	var data [2][]byte
	for i := range data {
		if _, err := variants.Make(t.Context(), dir, "wnd", "int8+table8", o); err != nil {
			t.Fatal(err)
		}
		var err error
		if data[i], err = os.ReadFile(newest(t, dir, "wnd-int8-table8").Path +
			".data"); err != nil {
			t.Fatal(err)
		}
		o.Overwrite = true
	}
	if !bytes.Equal(data[0], data[1]) {
		t.Error("the same variant has other bytes")
	}
	o.Overwrite = false
	made, err := variants.Make(t.Context(), dir, "wnd", "int8+table8", o)
	if err != nil || made.Written {
		t.Errorf("got %+v and error %v, want it there already", made, err)
	}
}

// No sum of two products of weights and inputs leaves 16 bits, so that processors that add them in
// 16 bits give the same answers as others.
func TestWeightsFit(t *testing.T) {
	dir := t.TempDir()
	to := filepath.Join(dir, "q.onnx")
	if _, err := variants.Quantize(t.Context(), write(t, dir, nil), to, "int8", false,
		nil); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	_, b, found := bytes.Cut(b, []byte("w/int8J\x80\x01")) // the tensor's name and its 128 bytes
	if !found {
		t.Fatal("the weights are not where they are expected")
	}
	most := 0
	for _, w := range b[:128] {
		most = max(most, int(int8(w)), -int(int8(w)))
	}
	if 2*255*most > math.MaxInt16 || most < 64 {
		t.Errorf("the largest weight is %d, want 64", most)
	}
}
