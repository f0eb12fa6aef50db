package control

import (
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
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
		{func(x *Release) { x.MaxDifference = proto.Float64(-1) }, "max_difference -1"},
		{func(x *Release) { x.MaxDifference = proto.Float64(math.Inf(1)) }, "max_difference +Inf"},
		{func(x *Release) { x.MaxDifference = proto.Float64(math.NaN()) }, "max_difference NaN"},
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

// TestComparedWithin: releases of older agents keep their meaning, and older agents are told what a
// release of today means.
func TestComparedWithin(t *testing.T) {
	for _, tt := range []struct {
		x        *Release
		within   float64
		compared bool
	}{
		{&Release{}, 0, false},
		{&Release{Tolerance: .05}, 0, false}, // there is no canary
		{&Release{Canary: 2}, .05, true},
		{&Release{Canary: 2, Tolerance: .1}, .1, true},
		{&Release{Canary: 2, Tolerance: OlderTolerance(nil)}, math.Inf(1), false},
		{&Release{Canary: 2, Tolerance: .1, MaxDifference: proto.Float64(0)}, 0, true},
		{&Release{Canary: 2, Tolerance: math.Inf(1), MaxDifference: proto.Float64(.2)}, .2, true},
	} {
		within, compared := tt.x.ComparedWithin()
		if within != tt.within || compared != tt.compared {
			t.Errorf("%v: got %v, %v, want %v, %v", tt.x, within, compared, tt.within, tt.compared)
		}
	}
	// An older agent takes an answer for wrong whose difference is above the tolerance, and 0 for
	// 0.05 where it makes a release.
	for _, tt := range []struct {
		max        *float64
		difference float64
		wrong      bool
	}{
		{nil, math.Inf(1), false}, {proto.Float64(0), 0, false}, {proto.Float64(0), 1e-300, true},
		{proto.Float64(.1), .1, false}, {proto.Float64(.1), .11, true},
	} {
		tolerance := OlderTolerance(tt.max)
		if tolerance == 0 || (tt.difference > tolerance) != tt.wrong {
			t.Errorf("%v: tolerance %v, a difference of %v is to be wrong: %v", tt.max, tolerance,
				tt.difference, tt.wrong)
		}
	}
}
