package control

import (
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestValidateRelease: what Set refuses, no release in a store or of another agent may say either.
func TestValidateRelease(t *testing.T) {
	good := func() *Release {
		return &Release{
			Model: "ncf", Number: 1, Current: 3, Canary: 4, Share: .1, Tolerance: .05,
		}
	}
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		change func(*Release)
		says   string
	}{
		{func(x *Release) { x.Model = "" }, "want a name"},
		{func(x *Release) { x.Current = 0 }, "want numbers above 0"},
		{func(x *Release) { x.Canary = 3 }, "want another"},
		{func(x *Release) { x.Share = math.NaN() }, "below 1"},
		{func(x *Release) { x.Tolerance = -1 }, "tolerance -1"},
		{func(x *Release) { x.Tolerance = math.NaN() }, "tolerance NaN"},
		{func(x *Release) { x.Tolerance = math.Inf(1) }, "tolerance +Inf"},
		{func(x *Release) { x.PromoteAfterNs = -1 }, "promote after -1ns"},
		{func(x *Release) { x.Number = MaxReleaseNumber + 1 }, "want at most 1099511627776"},
		{func(x *Release) { x.Kept = 1<<63 - 1 }, "want at most 1099511627776"},
		{func(x *Release) { x.Model = strings.Repeat("x", 256) }, "at most 255 bytes"},
	} {
		x := good()
		tt.change(x)
		if err := x.Validate(); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v: got %v, want %q", x, err, tt.says)
		}
	}
}

// TestCut: a text that is too long is cut to the limit, and stays one of UTF-8.
func TestCut(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", ""}, {"12345678", "12345678"}, {"123456789", "12345..."}, {"1234éééé", "1234..."},
	} {
		if got := Cut(tt.text, 8); got != tt.want || !utf8.ValidString(got) {
			t.Errorf("%q: got %q, want %q", tt.text, got, tt.want)
		}
	}
}
