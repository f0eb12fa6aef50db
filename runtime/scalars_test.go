package runtime_test

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// TestScalars: tensors without dimensions come in and go out, whatever their type, beside rows or
// alone.
func TestScalars(t *testing.T) {
	const free = onnx.Dynamic
	x := runtimetest.Open(t)
	for dataType, one := range map[tensor.DataType][]byte{
		tensor.FP32: floats(1.5), tensor.Int64: ints(-7), tensor.Bool: {1},
		tensor.FP16: {0, 0x3c}, tensor.BF16: {0x80, 0x3f}, tensor.Uint8: {200},
		tensor.FP64:  {0, 0, 0, 0, 0, 0, 0xf0, 0x3f},
		tensor.Bytes: append(binary.LittleEndian.AppendUint32(nil, 4), "text"...),
	} {
		for _, alone := range []bool{false, true} {
			s := onnx.ValueDescription{Name: "s", DataType: dataType, Shape: []int64{}}
			out := s
			out.Name = "out"
			m := onnx.Model{
				Inputs: []onnx.ValueDescription{s}, Outputs: []onnx.ValueDescription{out},
				Nodes: []onnx.Node{{Op: "Identity", Inputs: []string{"s"},
					Outputs: []string{"out"}}},
			}
			inputs := []tensor.Tensor{{Name: "s", DataType: dataType, Shape: []int64{}, Data: one}}
			rows := []float32{1, 2, 3, 4, 5, 6}
			if !alone {
				port := onnx.ValueDescription{Name: "x", DataType: tensor.FP32,
					Shape: []int64{free, 2}}
				m.Inputs = append(m.Inputs, port)
				port.Name = "y"
				m.Outputs = append(m.Outputs, port)
				m.Nodes = append(m.Nodes, onnx.Node{Op: "Abs", Inputs: []string{"x"},
					Outputs: []string{"y"}})
				inputs = append(inputs, must(tensor.Of("x", rows, 3, 2)))
			}
			v := write(t, &m, nil)
			if v.Batchless != alone {
				t.Errorf("%s, alone: %v: batchless is %v", dataType, alone, v.Batchless)
			}
			loaded := load(t, x, v)
			for range 2 {
				r, err := loaded.Run(context.Background(), inputs)
				if err != nil {
					t.Fatalf("%s, alone: %v: %v", dataType, alone, err)
				}
				if got := r.Outputs[0]; got.Shape == nil || len(got.Shape) != 0 ||
					!slices.Equal(got.Data, one) {
					t.Errorf("%s: got %x of shape %v, want %x", dataType, got.Data, got.Shape, one)
				}
				if !alone && !slices.Equal(must(tensor.Values[float32](r.Outputs[1])), rows) {
					t.Errorf("%s: y is %v", dataType, r.Outputs[1].Data)
				}
				r.Release()
			}
			lanes := runtime.NewLanes(runtime.LanesConfig{})
			if err := runtime.Warm(context.Background(), lanes, loaded, v); err != nil {
				t.Errorf("%s: %v", dataType, err)
			}
			emulated := load(t, runtime.NewEmulated(func(*models.Version, int) time.Duration {
				return 0
			}), v)
			if r, err := emulated.Run(context.Background(), inputs); err != nil ||
				len(r.Outputs[0].Shape) != 0 {
				t.Errorf("%s, emulated: %v", dataType, err)
			}
		}
	}
}

// TestScalarKeepsQueriesWhole: rows that share a scalar with their query are not independent,
// whatever the settings say.
func TestScalarKeepsQueriesWhole(t *testing.T) {
	m := relu([]int64{onnx.Dynamic, 2}, []int64{onnx.Dynamic, 2})
	m.Outputs = append(m.Outputs, onnx.ValueDescription{Name: "sum", DataType: tensor.FP32,
		Shape: []int64{}})
	m.Nodes = append(m.Nodes, onnx.Node{Op: "ReduceSum", Inputs: []string{"x"},
		Outputs:    []string{"sum"},
		Attributes: []onnx.Attribute{{Name: "keepdims", Value: int64(0)}}})
	dir := t.TempDir()
	writeFiles(t, dir, map[string][]byte{
		"m/1/model.onnx": m.Marshal(),
		"m/model.yaml":   []byte("rows_independent: true\nmerge: deadline\n"),
	})
	v, err := models.ReadVersion(dir, "m", 1)
	if err != nil {
		t.Fatal(err)
	}
	if v.Batchless || v.Config.Splits() || v.Config.Merging().Merges() || len(v.Config.Notes) != 1 {
		t.Errorf("batchless %v, splits %v, merges %v, notes %q", v.Batchless, v.Config.Splits(),
			v.Config.Merging(), v.Config.Notes)
	}
	loaded := load(t, runtimetest.Open(t), v)
	for _, n := range []int64{64, 3} {
		r, err := loaded.Run(context.Background(), []tensor.Tensor{
			must(tensor.Of("x", slices.Repeat([]float32{1}, int(2*n)), n, 2)),
		})
		if err != nil {
			t.Fatal(err)
		}
		got := must(tensor.Values[float32](r.Outputs[1]))
		if len(r.Outputs[1].Shape) != 0 || !slices.Equal(got, []float32{float32(2 * n)}) {
			t.Errorf("sum of %d rows is %v of shape %v", n, got, r.Outputs[1].Shape)
		}
		r.Release()
	}
}

// TestHalvesOfAnyShape: outputs of 16-bit floats may have several dynamic dimensions.
func TestHalvesOfAnyShape(t *testing.T) {
	const free = onnx.Dynamic
	x := runtimetest.Open(t)
	for _, dataType := range []tensor.DataType{tensor.FP16, tensor.BF16} {
		port := onnx.ValueDescription{Name: "x", DataType: dataType, Shape: []int64{free, free,
			free}}
		out := port
		out.Name = "y"
		loaded := load(t, x, write(t, &onnx.Model{
			Inputs: []onnx.ValueDescription{port}, Outputs: []onnx.ValueDescription{out},
			Nodes: []onnx.Node{{Op: "Identity", Inputs: []string{"x"}, Outputs: []string{"y"}}},
		}, nil))
		for _, shape := range [][]int64{{64, 2, 3}, {2, 1, 5}, {3, 0, 4}} {
			n := must(tensor.Elements(shape))
			in := tensor.Tensor{Name: "x", DataType: dataType, Shape: shape,
				Data: elements(dataType, n, 3)}
			r, err := loaded.Run(context.Background(), []tensor.Tensor{in})
			if err != nil {
				t.Fatalf("%s %v: %v", dataType, shape, err)
			}
			if got := r.Outputs[0]; !slices.Equal(got.Shape, shape) ||
				!slices.Equal(got.Data, in.Data) {
				t.Errorf("%s: got %x of shape %v, want %x of %v", dataType, got.Data, got.Shape,
					in.Data, shape)
			}
			r.Release()
		}
	}
}
