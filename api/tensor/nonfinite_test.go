package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
)

// floats returns a tensor of a floating-point type.
func floats(t testing.TB, d DataType, values ...float64) *Tensor {
	out := &Tensor{DataType: d, Shape: []int64{int64(len(values))}}
	for _, v := range values {
		switch d {
		case FP64:
			out.Data = binary.LittleEndian.AppendUint64(out.Data, math.Float64bits(v))
		case FP32:
			out.Data = binary.LittleEndian.AppendUint32(out.Data, math.Float32bits(float32(v)))
		default:
			half, ok := HalfOf(d, v)
			if !ok {
				t.Fatalf("%v is beyond %s", v, d)
			}
			out.Data = binary.LittleEndian.AppendUint16(out.Data, half)
		}
	}
	return out
}

// TestNonFinite: a value that is no finite number is found at each place, beside any others, and no
// finite number, the largest included, is taken for one.
func TestNonFinite(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	largest := map[DataType]float64{
		FP16: 65504, BF16: 0x1.fep127, FP32: math.MaxFloat32, FP64: math.MaxFloat64,
	}
	for d, most := range largest {
		for n := 1; n <= 70; n++ {
			finite := make([]float64, n)
			for i := range finite {
				finite[i] = []float64{most, -most, 0, -1, 0x1p-14}[i%5]
			}
			if got := floats(t, d, finite...).NonFinite(); got != Finite {
				t.Fatalf("%s %v: got %d", d, finite, got)
			}
			for i := range n {
				for _, tt := range []struct {
					v    float64
					want NonFinite
				}{{nan, HasNaN}, {-nan, HasNaN}, {inf, HasInfinity}, {-inf, HasNegativeInfinity}} {
					was := finite[i]
					finite[i] = tt.v
					if got := floats(t, d, finite...).NonFinite(); got != tt.want {
						t.Fatalf("%s: %v at %d of %d: got %d, want %d", d, tt.v, i, n, got, tt.want)
					}
					finite[i] = was
				}
			}
		}
		for _, tt := range []struct {
			values []float64
			want   NonFinite
		}{
			{[]float64{-inf, 0, nan, inf}, HasNaN},
			{[]float64{-inf, 0, inf, 1, -inf}, HasInfinity},
			{nil, Finite},
		} {
			if got := floats(t, d, tt.values...).NonFinite(); got != tt.want {
				t.Errorf("%s %v: got %d, want %d", d, tt.values, got, tt.want)
			}
		}
		cut := floats(t, d, 1, nan)
		cut.Data = cut.Data[:len(cut.Data)-1]
		if got := cut.NonFinite(); got != Finite {
			t.Errorf("%s: NaN of which a byte is missing: got %d", d, got)
		}
	}
	for _, d := range DataTypes() {
		if _, ok := largest[d]; ok {
			continue
		}
		ones := Tensor{DataType: d, Data: []byte{255, 255, 255, 255, 255, 255, 255, 255}}
		if got := ones.NonFinite(); got != Finite {
			t.Errorf("%s: got %d", d, got)
		}
	}
}

// BenchmarkNonFinite looks through answers of one item, of a thousand scores and of a large output.
func BenchmarkNonFinite(b *testing.B) {
	for _, d := range []DataType{FP16, FP32, FP64} {
		for _, n := range []int{1, 1000, 1 << 18} {
			out := floats(b, d, make([]float64, n)...)
			b.Run(fmt.Sprintf("%s/%d", d, n), func(b *testing.B) {
				b.SetBytes(int64(len(out.Data)))
				for b.Loop() {
					if out.NonFinite() != Finite {
						b.Fatal("found what is not there")
					}
				}
			})
		}
	}
}
