package shadow

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
)

func scores(values ...float32) []tensor.Tensor {
	t := tensor.Tensor{Name: "score", DataType: tensor.FP32, Shape: []int64{int64(len(values))}}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
	}
	return []tensor.Tensor{t}
}

func halves(d tensor.DataType, values ...float64) []tensor.Tensor {
	t := tensor.Tensor{Name: "score", DataType: d, Shape: []int64{int64(len(values))}}
	for _, v := range values {
		element, _ := tensor.HalfOf(d, v)
		t.Data = binary.LittleEndian.AppendUint16(t.Data, element)
	}
	return []tensor.Tensor{t}
}

func TestDifference(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	ids := []tensor.Tensor{{Name: "id", DataType: tensor.Int64, Shape: []int64{1},
		Data: make([]byte, 8)}}
	others := copyTensors(ids)
	others[0].Data[0] = 1
	for _, tt := range []struct {
		what string
		a, b []tensor.Tensor
		want float64
	}{
		{"alike", scores(.1, .9), scores(.1, .9), 0},
		{"the second by a half", scores(.125, 1), scores(.125, .5), .5},
		{"of large scores", scores(110), scores(100), .1},
		{"both no numbers", scores(nan, inf), scores(nan, inf), 0},
		{"one is no number", scores(nan), scores(.5), math.Inf(1)},
		{"one is infinite", scores(inf), scores(.5), math.Inf(1)},
		{"other lengths", scores(1), scores(1, 2), math.Inf(1)},
		{"one output less", scores(1), nil, math.Inf(1)},
		{"of 16 bits", halves(tensor.FP16, .5, 1), halves(tensor.FP16, .5, .75), .25},
		{"of bfloat16, one no number", halves(tensor.BF16, math.NaN()), halves(tensor.BF16, 1),
			math.Inf(1)},
		{"both zero", halves(tensor.BF16, 0), halves(tensor.BF16, math.Copysign(0, -1)), 0},
		{"alike ids", ids, copyTensors(ids), 0},
		{"other ids", ids, others, math.Inf(1)},
	} {
		for _, d := range []float64{maxDifference(tt.a, tt.b)} {
			if d != tt.want && math.Abs(d-tt.want) > 1e-6 {
				t.Errorf("%s: got %v, want %v", tt.what, d, tt.want)
			}
		}
	}
}
