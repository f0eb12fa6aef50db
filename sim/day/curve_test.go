package day

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestCurves: a curve is even between its points, repeats, has a mean of 1, and comes later by its
// shift.
func TestCurves(t *testing.T) {
	steps, err := ReadCurve("steps", strings.NewReader("hour,factor\n0,10\n6,30\n18,10\n"))
	if err != nil {
		t.Fatal(err)
	}
	later := *steps
	later.shift = 2 * time.Hour
	for _, tt := range []struct {
		curve *Curve
		hour  float64
		want  float64
	}{
		{Daily(), 0, 2. / 7}, {Daily(), 12, 12. / 7}, {Daily(), 30, 1}, {Daily(), -12, 12. / 7},
		{Flat(), 5, 1}, {steps, 6, 30. / 17.5}, {steps, 3, 20. / 17.5}, {steps, 12, 20. / 17.5},
		{steps, 21, 10. / 17.5}, {&later, 8, 30. / 17.5},
	} {
		got := tt.curve.At(time.Duration(tt.hour * float64(time.Hour)))
		if math.Abs(got-tt.want) > .005 {
			t.Errorf("at %v h: %.4f, want %.4f", tt.hour, got, tt.want)
		}
		mean := 0.0
		for at := time.Duration(0); at < Length; at += time.Minute {
			x := tt.curve.At(at)
			mean += x / Length.Minutes()
			if x > tt.curve.Max()+1e-9 {
				t.Errorf("%v h: %v is above the maximum, %v", at.Hours(), x, tt.curve.Max())
			}
		}
		if math.Abs(mean-1) > .005 {
			t.Errorf("the mean is %v, want 1", mean)
		}
	}
}

func TestCurvesThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "has no hour",
		"time,rate\n0,1\n":         "want the columns hour,factor",
		"hour,factor\n0,1\n0,2\n":  "not after the one before",
		"hour,factor\n24,1\n":      "want an hour in 0..24",
		"hour,factor\n1,x\n":       "want an hour in 0..24",
		"hour,factor\n0,0\n6,0\n":  "all factors are 0",
		"hour,factor\n0,-1\n6,0\n": "a factor of 0 or more",
	} {
		if _, err := ReadCurve("c.csv", strings.NewReader(text)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"weekly", "daily+x", "flat+24h", "daily+-1h"} {
		if _, err := ParseCurve(text); err == nil {
			t.Errorf("%q is no curve, and no error", text)
		}
	}
}
