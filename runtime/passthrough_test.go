package runtime_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// passthrough is a model whose output id is its input id, beside y = -x unless alone.
func passthrough(dataType tensor.DataType, row []int64, batch int64, alone bool) *onnx.Model {
	id := onnx.ValueDescription{Name: "id", DataType: dataType, Shape: append([]int64{batch},
		row...)}
	m := &onnx.Model{Inputs: []onnx.ValueDescription{id}, Outputs: []onnx.ValueDescription{id}}
	if !alone {
		x := onnx.ValueDescription{Name: "x", DataType: tensor.FP32, Shape: []int64{batch, 3}}
		y := x
		y.Name = "y"
		m.Inputs = append([]onnx.ValueDescription{x}, m.Inputs...)
		m.Outputs = append([]onnx.ValueDescription{y}, m.Outputs...)
		m.Nodes = []onnx.Node{{Op: "Neg", Inputs: []string{"x"}, Outputs: []string{"y"}}}
	}
	return m
}

// elements are n elements of a type, of bytes that are a value of each type.
func elements(dataType tensor.DataType, n int, value byte) (data []byte) {
	if dataType == tensor.Bytes {
		for i := range n {
			text := fmt.Sprint("text ", value, i)
			data = append(binary.LittleEndian.AppendUint32(data, uint32(len(text))), text...)
		}
		return data
	}
	data = make([]byte, n*dataType.Size())
	for i := range data {
		if data[i] = value + byte(i%7); dataType == tensor.Bool {
			data[i] %= 2
		}
	}
	return data
}

// TestInputIsOutput: an output that is an input is the query's own input, whatever ran before in
// the same memory. ONNX Runtime does not write such an output.
func TestInputIsOutput(t *testing.T) {
	x := runtimetest.Open(t)
	ctx := context.Background()
	for _, tt := range []struct {
		dataType    tensor.DataType
		row         []int64 // dimensions of id after the first one
		batch       int64   // the first one as the model has it
		alone       bool    // the model has no node
		independent bool
	}{
		{dataType: tensor.FP32, batch: onnx.Dynamic},
		{dataType: tensor.FP32, batch: onnx.Dynamic, independent: true},
		{dataType: tensor.FP32, batch: onnx.Dynamic, alone: true},
		{dataType: tensor.FP32, row: []int64{5}, batch: 40},
		{dataType: tensor.FP16, batch: onnx.Dynamic},
		{dataType: tensor.FP16, row: []int64{onnx.Dynamic}, batch: onnx.Dynamic},
		{dataType: tensor.BF16, row: []int64{2}, batch: onnx.Dynamic, alone: true},
		{dataType: tensor.FP64, row: []int64{onnx.Dynamic, 2}, batch: onnx.Dynamic},
		{dataType: tensor.FP64, row: []int64{onnx.Dynamic}, batch: onnx.Dynamic, independent: true},
		{dataType: tensor.Int64, batch: onnx.Dynamic, independent: true},
		{dataType: tensor.Int64, batch: 40},
		{dataType: tensor.Uint8, row: []int64{3}, batch: onnx.Dynamic},
		{dataType: tensor.Bool, batch: onnx.Dynamic},
		{dataType: tensor.Bool, batch: onnx.Dynamic, alone: true},
		{dataType: tensor.Bytes, batch: onnx.Dynamic},
		{dataType: tensor.Bytes, row: []int64{2}, batch: onnx.Dynamic, alone: true},
	} {
		name := fmt.Sprintf("%s %d %v alone=%t independent=%t", tt.dataType, tt.batch, tt.row,
			tt.alone, tt.independent)
		t.Run(name, func(t *testing.T) {
			v := write(t, passthrough(tt.dataType, tt.row, tt.batch, tt.alone), nil)
			v.Config.RowsIndependent = tt.independent
			m := load(t, x, v)
			ask := func(batch int, value byte) {
				if tt.batch != onnx.Dynamic {
					batch = int(tt.batch)
				}
				shape, n := []int64{int64(batch)}, batch
				for _, d := range tt.row {
					if d == onnx.Dynamic {
						d = 4
					}
					shape, n = append(shape, d), n*int(d)
				}
				want := elements(tt.dataType, n, value)
				inputs := []tensor.Tensor{
					{Name: "id", DataType: tt.dataType, Shape: shape, Data: bytes.Clone(want)},
				}
				scores := slices.Repeat([]float32{float32(value), 2, 3}, batch)
				if !tt.alone {
					inputs = append([]tensor.Tensor{
						must(tensor.Of("x", scores, int64(batch), 3)),
					}, inputs...)
				}
				r, err := m.Run(ctx, inputs)
				if err != nil {
					t.Error(err)
					return
				}
				defer r.Release()
				for _, in := range inputs { // they belong to the caller again
					clear(in.Data)
				}
				out := r.Outputs[len(r.Outputs)-1]
				if out.Name != "id" || out.DataType != tt.dataType ||
					!slices.Equal(out.Shape, shape) || !bytes.Equal(out.Data, want) {
					t.Errorf("batch %d: got %s %s %v %x, want %x of shape %v", batch, out.Name,
						out.DataType, out.Shape, out.Data, want, shape)
				}
				if tt.alone {
					return
				}
				got, err := tensor.Values[float32](r.Outputs[0])
				for i := range got {
					got[i] = -got[i]
				}
				if err != nil || !slices.Equal(got, slices.Repeat(
					[]float32{float32(value), 2, 3}, batch)) {
					t.Errorf("batch %d: y is %v, %v", batch, got, err)
				}
			}
			for i, batch := range []int{64, 2, 0, 40, 1} {
				ask(batch, byte(10*i+1))
			}
			var clients sync.WaitGroup
			for c := range 4 {
				clients.Go(func() {
					for i := range 10 {
						ask(1+(7*i+c)%30, byte(20*c+i))
					}
				})
			}
			clients.Wait()
		})
	}
}

// TestReusedOutputs: what a query gets is its own, however ONNX Runtime comes by an output: by an
// initializer, by a node that only passes on, or by one that writes nothing.
func TestReusedOutputs(t *testing.T) {
	const free = onnx.Dynamic
	port := func(name string, shape ...int64) onnx.ValueDescription {
		return onnx.ValueDescription{Name: name, DataType: tensor.FP32, Shape: shape}
	}
	constant := onnx.Initializer{
		Name: "c", DataType: tensor.FP32, Shape: []int64{2}, Data: floats(5, 6),
	}
	x := runtimetest.Open(t)
	for _, tt := range []struct {
		name  string
		model onnx.Model
		want  func(in []float32) []float32
	}{
		{"initializer", onnx.Model{
			Outputs:      []onnx.ValueDescription{port("y", free, 2), port("c", 2)},
			Initializers: []onnx.Initializer{constant},
			Nodes:        []onnx.Node{{Op: "Neg", Inputs: []string{"x"}, Outputs: []string{"y"}}},
		}, func([]float32) []float32 { return []float32{5, 6} }},
		{"initializer by name", onnx.Model{
			Outputs:      []onnx.ValueDescription{port("y", free, 2), port("d", 2)},
			Initializers: []onnx.Initializer{constant},
			Nodes: []onnx.Node{
				{Op: "Neg", Inputs: []string{"x"}, Outputs: []string{"y"}},
				{Op: "Identity", Inputs: []string{"c"}, Outputs: []string{"d"}},
			},
		}, func([]float32) []float32 { return []float32{5, 6} }},
		{"identity", onnx.Model{
			Outputs: []onnx.ValueDescription{port("y", free, 2)},
			Nodes:   []onnx.Node{{Op: "Identity", Inputs: []string{"x"}, Outputs: []string{"y"}}},
		}, slices.Clone[[]float32]},
		{"dropout", onnx.Model{
			Outputs: []onnx.ValueDescription{port("y", free, 2)},
			Nodes:   []onnx.Node{{Op: "Dropout", Inputs: []string{"x"}, Outputs: []string{"y"}}},
		}, slices.Clone[[]float32]},
		{"reshape", onnx.Model{
			Outputs: []onnx.ValueDescription{port("y", free, 2)},
			Nodes: []onnx.Node{
				{Op: "Shape", Inputs: []string{"x"}, Outputs: []string{"s"}},
				{Op: "Reshape", Inputs: []string{"x", "s"}, Outputs: []string{"y"}},
			},
		}, slices.Clone[[]float32]},
		{"same value twice", onnx.Model{
			Outputs: []onnx.ValueDescription{port("y", free, 2), port("z", free, 2)},
			Nodes: []onnx.Node{
				{Op: "Neg", Inputs: []string{"x"}, Outputs: []string{"y"}},
				{Op: "Identity", Inputs: []string{"y"}, Outputs: []string{"z"}},
			},
		}, func(in []float32) (out []float32) {
			for _, f := range in {
				out = append(out, -f)
			}
			return out
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.model.Inputs = []onnx.ValueDescription{port("x", free, 2)}
			m := load(t, x, write(t, &tt.model, nil))
			for i, batch := range []int{64, 2, 64, 1} {
				in := make([]float32, 2*batch)
				for k := range in {
					in[k] = float32(1000*i + k)
				}
				r, err := m.Run(context.Background(), []tensor.Tensor{
					must(tensor.Of("x", slices.Clone(in), int64(batch), 2)),
				})
				if err != nil {
					t.Fatal(err)
				}
				out := r.Outputs[len(r.Outputs)-1]
				got, err := tensor.Values[float32](out)
				if want := tt.want(in); err != nil || !slices.Equal(got, want) {
					t.Errorf("batch %d: %s is %v, %v, want %v", batch, out.Name, got, err, want)
				}
				r.Release()
			}
		})
	}
}
