package tensor

import "math"

// floatBits returns how many bits of a 16-bit float type are its fraction, and the exponent of its
// smallest normal number; 0 for other types.
func (d DataType) floatBits() (fraction, smallest int) {
	switch d {
	case FP16:
		return 10, -14
	case BF16:
		return 7, -126
	}
	return 0, 0
}

// HalfOf returns v as an element of d, which is [FP16] or [BF16]: the nearest one, and of two the
// even one. ok is false if v is finite and beyond the largest number of d.
func HalfOf(d DataType, v float64) (element uint16, ok bool) {
	fraction, smallest := d.floatBits()
	infinite := uint16(1)<<15 - 1<<fraction
	if math.Signbit(v) {
		element = 1 << 15
	}
	switch {
	case math.IsNaN(v):
		return element | infinite | 1<<(fraction-1), true
	case math.IsInf(v, 0):
		return element | infinite, true
	case v == 0:
		return element, true
	}
	_, exponent := math.Frexp(v)
	exponent = max(exponent-1, smallest)
	// steps counts steps between neighbouring numbers of this exponent. A normal number
	// has 1<<fraction of them or more, which adds the 1 that its exponent's field has more
	// than that of smallest.
	steps := math.RoundToEven(math.Ldexp(math.Abs(v), fraction-exponent))
	bits := steps + float64((exponent-smallest)<<fraction)
	if bits >= float64(infinite) {
		return 0, false
	}
	return element | uint16(bits), true
}

// OfHalf returns the value of an element of d, which is [FP16] or [BF16].
func OfHalf(d DataType, element uint16) float64 {
	fraction, smallest := d.floatBits()
	sign := 1.0
	if element>>15 == 1 {
		sign = -1
	}
	exponent := int(element&^(1<<15)) >> fraction
	steps := int(element) & (1<<fraction - 1)
	switch {
	case exponent == (1<<15-1)>>fraction && steps > 0:
		return math.NaN()
	case exponent == (1<<15-1)>>fraction:
		return math.Inf(int(sign))
	case exponent == 0:
		exponent = 1
	default:
		steps += 1 << fraction
	}
	return math.Copysign(math.Ldexp(float64(steps), exponent-1+smallest-fraction), sign)
}
