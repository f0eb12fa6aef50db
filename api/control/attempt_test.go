package control

import (
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
)

func TestAttempt(t *testing.T) {
	for _, a := range []Attempt{
		{1, 1, 1, 0, 0, 0, 0, 0, 0, false},
		{math.MaxUint64, math.MaxUint64, math.MaxUint32, math.MaxUint32, math.MaxInt64,
			math.MaxUint64, 0, 0, 0, false},
	} {
		if got, err := ParseAttempt(a.String(), "", ""); got != a || err != nil {
			t.Errorf("%q: got %v, %v, want %v", a.String(), got, err, a)
		}
	}
	if s := (Attempt{0xabc, 7, 2, 3, 4, 5, 6, 7, 8, false}).String(); s != "abc/7/2/3/4/5" {
		t.Errorf("got %q, want abc/7/2/3/4/5", s)
	}
	for _, s := range []string{"", "1", "1/1/1/0", "1/1/1/0/0", "1/1/1/0/0/0/0", "1/1/0/0/0/0",
		"x/1/1/0/0/0", "1/-1/1/0/0/0", "1/1/4294967296/0/0/0",
		"1/1/1/0/9223372036854775808/0", "1/1/1/0/-1/0", "1/1/1/0/0/"} {
		if a, err := ParseAttempt(s, "", ""); err == nil {
			t.Errorf("%q: got %v, want an error", s, a)
		}
	}
	if a, err := ParseAttempt("1/1/1/0/0/0", "2", ""); err != nil || a.Part != 2 {
		t.Errorf("part 2: got %v, %v", a, err)
	}
	if a, err := ParseAttempt("1/1/1/0/0/0", "shadow", ""); err != nil || !a.Shadow ||
		a.PartString() != "shadow" {
		t.Errorf("a shadow: got %v, %v", a, err)
	}
	for _, part := range []string{"0", "-1", "two", "4294967296"} {
		if a, err := ParseAttempt("1/1/1/0/0/0", part, ""); err == nil {
			t.Errorf("part %q: got %v, want an error", part, a)
		}
	}
	for _, a := range []Attempt{{Merge: 1, Merged: 2}, {Merge: math.MaxUint64, Merged: 1 << 31}} {
		got, err := ParseAttempt("1/1/1/0/0/0", "", a.MergeString())
		if err != nil || got.Merge != a.Merge || got.Merged != a.Merged {
			t.Errorf("merge %q: got %v, %v", a.MergeString(), got, err)
		}
	}
	for _, merge := range []string{
		"0/2", "1/1", "1", "1/", "/2", "1/2/3", "x/2", "1/-2", "1/4294967296",
	} {
		if a, err := ParseAttempt("1/1/1/0/0/0", "", merge); err == nil {
			t.Errorf("merge %q: got %v, want an error", merge, a)
		}
	}
}

// FuzzAttempt reads any header. One that is an attempt says the same when written.
func FuzzAttempt(f *testing.F) {
	f.Add("abc/7/2/3/4/5")
	f.Add("1/1/4294967296/0/0/0")
	f.Add("+1/1/1/")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAttempt(s, "", "")
		if err != nil {
			return
		}
		if again, err := ParseAttempt(a.String(), "", ""); again != a || err != nil ||
			a.Attempt == 0 {
			t.Errorf("%q: got %v, then %v, %v", s, a, again, err)
		}
	})
}

func TestRemaining(t *testing.T) {
	for _, want := range []time.Duration{0, 1, math.MaxInt64} {
		if d, ok := RemainingOf(RemainingTrailer(want)); d != want || !ok {
			t.Errorf("got %d, %v, want %d", d, ok, want)
		}
	}
	for _, said := range [][]string{nil, {""}, {"-1"}, {"x"}, {"1", "2"}, {"9223372036854775808"}} {
		if d, ok := RemainingOf(metadata.MD{remainingTrailer: said}); ok {
			t.Errorf("%q: got %d, want none", said, d)
		}
	}
}
