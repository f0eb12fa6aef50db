package tensor

import (
	"math"
	"testing"
)

// TestHalf: each of the 65,536 elements keeps its value, and what lies between two goes to the
// nearer one, or to the even one.
func TestHalf(t *testing.T) {
	for _, d := range []DataType{FP16, BF16} {
		for i := range 1 << 16 {
			e := uint16(i)
			v := OfHalf(d, e)
			got, ok := HalfOf(d, v)
			if math.IsNaN(v) {
				if !ok || !math.IsNaN(OfHalf(d, got)) {
					t.Fatalf("%s: NaN %#x becomes %#x", d, e, got)
				}
				continue
			}
			if !ok || got != e {
				t.Fatalf("%s: %#x is %v, which becomes %#x, %v", d, e, v, got, ok)
			}
			next := OfHalf(d, e+1)
			if e&(1<<15-1) == 1<<15-1 || math.IsNaN(next) || math.IsInf(next, 0) ||
				math.IsInf(v, 0) {
				continue
			}
			even := e + e&1
			if got, ok := HalfOf(d, v+(next-v)/2); !ok || got != even {
				t.Fatalf("%s: between %#x and the next becomes %#x, want %#x", d, e, got, even)
			}
			if got, _ := HalfOf(d, v+(next-v)*0.51); got != e+1 {
				t.Fatalf("%s: above the middle of %#x becomes %#x", d, e, got)
			}
		}
	}
	for _, tt := range []struct {
		d    DataType
		v    float64
		want uint16
	}{
		{FP16, 1, 0x3c00}, {FP16, -2, 0xc000}, {FP16, 65504, 0x7bff}, {FP16, 0x1p-24, 1},
		{FP16, 1.0 / 3, 0x3555}, {BF16, 1, 0x3f80}, {BF16, -2.5, 0xc020}, {BF16, 0x1p-133, 1},
		{FP16, math.Copysign(0, -1), 0x8000}, {BF16, math.Inf(-1), 0xff80}, {FP16, 0x1p-26, 0},
	} {
		if got, ok := HalfOf(tt.d, tt.v); !ok || got != tt.want {
			t.Errorf("%s %v: got %#x, %v, want %#x", tt.d, tt.v, got, ok, tt.want)
		}
	}
	for d, v := range map[DataType]float64{FP16: 65520, BF16: math.MaxFloat64} {
		if got, ok := HalfOf(d, v); ok {
			t.Errorf("%s %v: got %#x, want that it is too large", d, v, got)
		}
	}
}
