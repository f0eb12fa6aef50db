package day

import (
	"math"
	"os"
	"path/filepath"
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
		if _, err := ParseCurve(text, nil); err == nil {
			t.Errorf("%q is no curve, and no error", text)
		}
	}
}

// TestCurveOfRecordedQueries: recorded queries are a curve of their minutes, which repeats after
// them, with the mean 1; too few minutes, and what cannot be read, are errors.
func TestCurveOfRecordedQueries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queries.jsonl")
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	counts := func(all []float64, err error) func(string) ([]float64, error) {
		return func(of string) ([]float64, error) {
			if of != path {
				t.Errorf("asked for %q", of)
			}
			return all, err
		}
	}
	for shift, text := range map[time.Duration]string{0: path, time.Minute: path + "+1m"} {
		c, err := ParseCurve(text, counts([]float64{10, 30, 20}, nil))
		if err != nil {
			t.Fatal(err)
		}
		for at, want := range map[time.Duration]float64{
			30 * time.Second: .5, 90 * time.Second: 1.5, 150 * time.Second: 1,
			time.Minute: 1, 210 * time.Second: .5, -30 * time.Second: 1,
			24*time.Hour + 90*time.Second: 1.5, // 480 times three minutes
		} {
			if got := c.At(at + shift); math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: after %v the factor is %v, want %v", text, at, got, want)
			}
		}
		if got := c.Max(); math.Abs(got-1.5) > 1e-9 {
			t.Errorf("the largest factor is %v", got)
		}
	}
	for _, read := range []func(string) ([]float64, error){
		counts([]float64{1}, nil), counts([]float64{0, 0}, nil), counts(nil, os.ErrInvalid),
	} {
		if c, err := ParseCurve(path, read); err == nil {
			t.Errorf("got %v", c)
		}
	}
}
