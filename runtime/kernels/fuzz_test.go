package kernels_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// A shop draws the parts of a random model.
type shop struct {
	*rand.Rand
	model  onnx.Model
	inputs []tensor.Tensor
	bad    bool // whether an id is outside of its table
}

func (s *shop) oneOf(values ...int64) int64 { return values[s.IntN(len(values))] }

func (s *shop) node(op string, inputs []string, attributes ...onnx.Attribute) string {
	n := onnx.Node{Op: op, Name: fmt.Sprintf("node_%d", len(s.model.Nodes)), Inputs: inputs,
		Attributes: attributes}
	n.Outputs = []string{n.Name + ":0"}
	s.model.Nodes = append(s.model.Nodes, n)
	return n.Outputs[0]
}

func (s *shop) constant(shape []int64, values ...int64) string {
	name := fmt.Sprintf("constant_%d", len(s.model.Initializers))
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint64(data, uint64(v))
	}
	s.model.Initializers = append(s.model.Initializers, onnx.Initializer{Name: name,
		DataType: tensor.Int64, Shape: shape, Data: data})
	return name
}

// table adds a table with some rows that are extreme.
func (s *shop) table(rows, dim int64, half bool) string {
	t := onnx.Initializer{Name: fmt.Sprintf("table_%d", len(s.model.Initializers)),
		DataType: tensor.FP32, Shape: []int64{rows, dim}}
	scale := math.Exp(4 * s.NormFloat64())
	for range rows * dim {
		if half { // all but infinite ones and those that are no numbers
			t.DataType = tensor.FP16
			h := uint16(s.Uint32())
			if h&0x7c00 == 0x7c00 {
				h &^= 0x4000
			}
			t.Data = binary.LittleEndian.AppendUint16(t.Data, h)
			continue
		}
		v := float32(scale * s.NormFloat64())
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
	}
	s.model.Initializers = append(s.model.Initializers, t)
	return t.Name
}

func attribute(name string, value any) onnx.Attribute {
	return onnx.Attribute{Name: name, Value: value}
}

// ids adds an input of ids of the given shape; rows is the size of the smallest table.
func (s *shop) ids(kind tensor.DataType, shape []int64, rows int64) string {
	name := fmt.Sprintf("ids_%d", len(s.model.Inputs))
	n := int64(1)
	declared := slices.Clone(shape)
	declared[0] = onnx.Dynamic
	for i, d := range shape {
		n *= d
		if i == len(shape)-1 && i > 1 && s.IntN(2) == 0 {
			declared[i] = onnx.Dynamic
		}
	}
	s.model.Inputs = append(s.model.Inputs, onnx.ValueDescription{Name: name, DataType: kind,
		Shape: declared})
	var data []byte
	wrong := int64(-1)
	if s.bad && n > 0 {
		wrong = s.Int64N(n)
	}
	for i := range n {
		v := s.Int64N(2*rows) - rows
		if i == wrong {
			v = s.oneOf(rows*1000, -rows*1000, math.MaxInt32, math.MinInt32)
		}
		if kind == tensor.Int32 {
			data = binary.LittleEndian.AppendUint32(data, uint32(v))
		} else {
			data = binary.LittleEndian.AppendUint64(data, uint64(v))
		}
	}
	s.inputs = append(s.inputs, tensor.Tensor{Name: name, DataType: kind, Shape: shape, Data: data})
	return name
}

// draw makes a random model: tables whose rows are looked up, summed and joined in one of the ways
// that users' models have.
func draw(seed uint64) (*shop, variants.Kind) {
	s := &shop{Rand: rand.New(rand.NewPCG(seed, 1))}
	s.model.Name = "random"
	s.model.Opset = s.oneOf(13, 17, 18, 20)
	s.bad = s.IntN(6) == 0
	kind := tensor.DataType(tensor.Int64)
	if s.IntN(3) == 0 {
		kind = tensor.Int32
	}
	form := s.IntN(4) // fp32, fp16, table8, table4
	tables, batch := s.oneOf(1, 1, 2, 3, 5), s.oneOf(1, 1, 2, 3, 7, 40)
	lookups := s.oneOf(1, 2, 5, 17, 40) // ONNX Runtime's ReduceSum of nothing ends the process
	rows := s.oneOf(1, 2, 10, 60, 300)
	way := s.IntN(5)
	op := []string{"ReduceSum", "ReduceSum", "ReduceMean", ""}[s.IntN(4)]
	keep := s.Int64N(2)

	// parts are the ids of the tables, of rank dimensions, and summed the axis of lookups.
	var parts []string
	rank, summed := 2, int64(1)
	switch way {
	case 0: // packed, [N, tables, lookups], and split
		rank, summed = 3, 2
		packed := s.ids(kind, []int64{batch, tables, lookups}, rows)
		sizes := slices.Repeat([]int64{1}, int(tables))
		name := s.constant([]int64{tables}, sizes...)
		var outputs []string
		for i := range tables {
			outputs = append(outputs, fmt.Sprintf("part_%d", i))
		}
		s.model.Nodes = append(s.model.Nodes, onnx.Node{Op: "Split", Name: "split",
			Inputs: []string{packed, name}, Outputs: outputs,
			Attributes: []onnx.Attribute{attribute("axis", int64(1))}})
		parts = outputs
	case 1: // packed, and picked
		packed := s.ids(kind, []int64{batch, tables + 1, lookups}, rows)
		for i := range tables {
			parts = append(parts, s.node("Gather",
				[]string{packed, s.constant([]int64{}, tables-i)}, attribute("axis", int64(1))))
		}
	case 2: // apart
		for range tables {
			parts = append(parts, s.ids(kind, []int64{batch, lookups}, rows))
		}
	case 3: // apart, and the lookups are not the last axis
		rank = 3
		last := s.oneOf(1, 2, 3)
		for range tables {
			parts = append(parts, s.ids(kind, []int64{batch, lookups, last}, rows))
		}
	case 4: // the lookups of the tables side by side, split along their axis
		name := s.ids(kind, []int64{batch, tables * 2}, rows)
		var outputs []string
		for i := range tables {
			outputs = append(outputs, fmt.Sprintf("part_%d", i))
		}
		s.model.Nodes = append(s.model.Nodes, onnx.Node{Op: "Split", Name: "split",
			Inputs: []string{name, s.constant([]int64{tables}, slices.Repeat([]int64{2},
				int(tables))...)},
			Outputs: outputs, Attributes: []onnx.Attribute{attribute("axis", int64(-1))}})
		parts = outputs
	}
	var features []string
	for _, part := range parts {
		dim := s.oneOf(4, 6, 8, 16, 18, 32, 48, 50, 64, 66, 100, 128, 200)
		value := s.node("Gather", []string{s.table(rows, dim, form == 1), part},
			attribute("axis", int64(0)))
		if form == 1 {
			value = s.node("Cast", []string{value}, attribute("to", int64(1)))
		}
		if op != "" {
			axis := summed
			if s.IntN(2) == 0 {
				axis -= int64(rank) + 1
			}
			inputs, attributes := []string{value}, []onnx.Attribute{attribute("keepdims", keep)}
			if op == "ReduceMean" && s.model.Opset < 18 {
				attributes = append(attributes, attribute("axes", []int64{axis}))
			} else {
				inputs = append(inputs, s.constant([]int64{1}, axis))
			}
			value = s.node(op, inputs, attributes...)
		}
		features = append(features, value)
	}
	if s.IntN(4) > 0 {
		s.node("Concat", features, attribute("axis", int64(-1)))
		features = []string{s.model.Nodes[len(s.model.Nodes)-1].Outputs[0]}
	}
	for _, f := range features {
		s.model.Outputs = append(s.model.Outputs, onnx.ValueDescription{Name: f,
			DataType: tensor.FP32})
	}
	return s, []variants.Kind{"", "", "table8", "table4"}[form]
}

// executors are one with kernels and one without.
func executors(t testing.TB, log *strings.Builder) (with, without *runtime.ONNX) {
	t.Helper()
	for _, on := range []bool{true, false} {
		x, err := runtime.OpenONNX(runtime.Config{
			LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, Cores: 2, Kernels: on,
			Logger: slog.New(slog.NewTextHandler(log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if on {
			with = x
		} else {
			without = x
		}
	}
	return with, without
}

// compare runs a model with and without kernels, and wants the same outputs, or two errors.
func compare(t *testing.T, path string, inputs []tensor.Tensor, bad bool) (log string) {
	t.Helper()
	log, err := compareRuns(t, path, inputs, bad)
	if err != nil && !bad {
		t.Fatalf("neither runs: %v", err)
	}
	return log
}

// compareRuns is compare, and returns the error of both, if both have one.
func compareRuns(t *testing.T, path string, inputs []tensor.Tensor, bad bool) (log string, _ error) {
	t.Helper()
	var text strings.Builder
	with, without := executors(t, &text)
	v, err := models.FileVersion(path)
	if err != nil {
		t.Fatal(err)
	}
	var results [2]*runtime.Result
	var errs [2]error
	for i, x := range []*runtime.ONNX{with, without} {
		m, err := x.Load(context.Background(), v)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if results[i], errs[i] = m.Run(context.Background(), inputs); errs[i] == nil {
			defer results[i].Release()
		}
	}
	if (errs[0] == nil) != (errs[1] == nil) {
		t.Fatalf("got error %v, ONNX Runtime's operators %v", errs[0], errs[1])
	}
	if errs[1] != nil {
		var outside *runtime.IndexError
		if bad && (!errors.As(errs[0], &outside) || !errors.As(errs[1], &outside)) {
			t.Fatalf("got error %v, ONNX Runtime's operators %v", errs[0], errs[1])
		}
		return text.String(), errs[1]
	}
	for i, want := range results[1].Outputs {
		got := results[0].Outputs[i]
		if !slices.Equal(got.Shape, want.Shape) {
			t.Fatalf("output %d: got shape %v, want %v", i, got.Shape, want.Shape)
		}
		a, err := tensor.Values[float32](got)
		if err != nil {
			t.Fatal(err)
		}
		b, err := tensor.Values[float32](want)
		if err != nil {
			t.Fatal(err)
		}
		largest := 0.
		for _, v := range b {
			largest = max(largest, math.Abs(float64(v)))
		}
		for j := range b {
			x, y := float64(a[j]), float64(b[j])
			if x != y && !(math.IsNaN(x) && math.IsNaN(y)) && math.Abs(x-y) > 1e-5*largest {
				t.Fatalf("output %d, element %d: got %v, want %v", i, j, x, y)
			}
		}
	}
	return text.String(), nil
}

// random runs the random model of a seed.
func random(t *testing.T, seed uint64) (log string) {
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	s, variant := draw(seed)
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(path, s.model.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
	if variant != "" {
		to := path + "-" + string(variant) + ".onnx"
		if _, err := variants.Quantize(t.Context(), path, to, variant, false, nil); err != nil {
			t.Fatal(err)
		}
		path = to
	}
	return compare(t, path, s.inputs, s.bad)
}

// FuzzKernels compares random models with and without kernels.
func FuzzKernels(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { random(t, seed) })
}

// Of many random models all have the outputs of ONNX Runtime's operators, and almost all use
// kernels.
func TestRandomModels(t *testing.T) {
	used, all := 0, uint64(300)
	for seed := range all {
		log := random(t, 1000+seed)
		if strings.Contains(log, "Muster's operators do the lookups") {
			used++
		} else if strings.Contains(log, "WARN") {
			t.Errorf("seed %d: %s", 1000+seed, log)
		}
	}
	t.Logf("%d of %d models use kernels", used, all)
	if used < int(all)*2/3 {
		t.Errorf("%d of %d models use kernels, want at least two of three", used, all)
	}
}
