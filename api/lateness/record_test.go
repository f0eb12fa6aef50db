package lateness

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// TestCause: the cause is the largest component that alone is too much.
func TestCause(t *testing.T) {
	type parts map[Component]time.Duration
	for _, c := range []struct {
		name   string
		parts  parts
		failed Cause
		want   Cause
	}{
		{"in time", parts{AwaitedLane: 40 * ms, RanAsProfiled: 60 * ms}, "", ""},
		{"one enough", parts{AwaitedLane: 60 * ms, RanAsProfiled: 60 * ms}, "", Lane},
		{"the larger", parts{AwaitedLane: 60 * ms, OnTheWay: 61 * ms}, "", Way},
		{"the first of equals", parts{AwaitedLane: 61 * ms, OnTheWay: 61 * ms}, "", Lane},
		{"only together", parts{
			AwaitedLane: 40 * ms, LackedCPU: 40 * ms, OnTheWay: 40 * ms, RanAsProfiled: 60 * ms,
		}, "", Several},
		{"a run is no fault", parts{AwaitedLane: 20 * ms, RanAsProfiled: 90 * ms}, "", Lane},
		{"a run beyond the target", parts{AwaitedLane: 20 * ms, RanAsProfiled: 190 * ms}, "", Target},
		{"nobody measured", parts{Unmeasured: 190 * ms}, "", Unknown},
		{"part of it not measured", parts{
			Unmeasured: 50 * ms, RanAsProfiled: 60 * ms, AwaitedLane: 60 * ms,
		}, "", Unknown},
		{"a failure has its own", parts{AwaitedLane: 190 * ms}, Limit, Limit},
	} {
		r := Record{Target: 100 * ms, Failed: c.failed}
		for at, d := range c.parts {
			r.Parts[at] = d
		}
		if got := r.Cause(); got != c.want {
			t.Errorf("%s: cause %q, want %q", c.name, got, c.want)
		}
	}
	if got := (&Record{Parts: [Components]time.Duration{OnTheWay: time.Hour}}).Cause(); got != "" {
		t.Errorf("without a target: cause %q, want none", got)
	}
}

// TestCauseProperty: of records drawn at random, the components add up to the total, also after
// moves; without the component that the cause names, the query would have been in time, and no
// other that would do is larger; Several means that none would do.
func TestCauseProperty(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 59))
	seen := map[Cause]int{}
	for range 20_000 {
		r := Record{Target: time.Duration(1+random.IntN(100)) * ms}
		sum := time.Duration(0)
		for c := range r.Parts {
			if random.IntN(3) == 0 {
				r.Parts[c] = time.Duration(random.IntN(80)) * ms
			}
			sum += r.Parts[c]
		}
		for range random.IntN(3) {
			r.Move(Component(random.IntN(Components)), Component(random.IntN(Components)),
				time.Duration(random.IntN(100))*ms)
		}
		if got := r.Total(); got != sum {
			t.Fatalf("%+v: total %v, want %v", r, got, sum)
		}
		cause := r.Cause()
		seen[cause]++
		if cause == "" {
			if sum > r.Target {
				t.Fatalf("%+v: no cause, and late", r)
			}
			continue
		}
		if sum <= r.Target {
			t.Fatalf("%+v: cause %q, and in time", r, cause)
		}
		enough := func(c int) bool { return sum-r.Parts[c] <= r.Target }
		best := time.Duration(-1)
		for c := range r.Parts {
			if Component(c) != RanAsProfiled && enough(c) {
				best = max(best, r.Parts[c])
			}
		}
		named := slices.Index(causes[:], cause)
		switch {
		case cause == Several, cause == Target, cause == Unknown && best < 0:
			if best >= 0 {
				t.Fatalf("%+v: cause %q, and a component of %v would do", r, cause, best)
			}
		case !enough(named) || r.Parts[named] != best:
			t.Fatalf("%+v: cause %q of %v, want one of %v", r, cause, r.Parts[named], best)
		}
		if got := r.Of(cause); cause != Several && got != r.Parts[named] {
			t.Fatalf("%+v: %q took %v, want %v", r, cause, got, r.Parts[named])
		}
	}
	for _, c := range append(causes[:], Several, "") {
		if seen[c] == 0 {
			t.Errorf("no record had the cause %q: %v", c, seen)
		}
	}
}

// TestParts: what is written is read, also by a version with fewer or more components.
func TestParts(t *testing.T) {
	var parts [Components]time.Duration
	for c := range parts {
		parts[c] = time.Duration(c*c) * ms
	}
	text := AppendParts(nil, &parts)
	if got, ok := ReadParts(text); !ok || got != parts {
		t.Errorf("got %v, %v, want %v", got, ok, parts)
	}
	if got, ok := ReadParts(text[:3]); !ok || got[1] != parts[1] || got[2] != 0 {
		t.Errorf("of an older writer: got %v, %v", got, ok)
	}
	if got, ok := ReadParts(append(text, 5)); !ok ||
		got[Unmeasured] != parts[Unmeasured]+5*time.Microsecond {
		t.Errorf("of a newer writer: got %v, %v", got, ok)
	}
	for _, bad := range [][]byte{{0x80}, make([]byte, 100)} {
		if got, ok := ReadParts(bad); ok {
			t.Errorf("%x: got %v, want an error", bad, got)
		}
	}
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}
	if got, _ := ReadParts(huge); got[0] != maxPart {
		t.Errorf("got %v, want it bounded", got[0])
	}
}

func FuzzReadParts(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		parts, ok := ReadParts(b)
		r := Record{Target: 1, Parts: parts}
		if ok && r.Total() < 0 {
			t.Errorf("%x: total %v", b, r.Total())
		}
	})
}

// TestCauseOfFailure: a failure whose reason leaves open why has the cause of its time.
func TestCauseOfFailure(t *testing.T) {
	late := &Record{Target: 10 * ms, Parts: [Components]time.Duration{LackedCPU: 20 * ms}}
	early := &Record{Target: 10 * ms, Parts: [Components]time.Duration{AwaitedLane: 2 * ms}}
	for _, c := range []struct {
		reason string
		r      *Record
		want   Cause
	}{
		{"limit", late, Limit}, {"limit", nil, Limit}, {"deadline", late, CPU},
		{"deadline", nil, Unknown}, {"overloaded", early, Lane}, {"overloaded", late, CPU},
		{"late", nil, Lane}, {"gpu", late, GPU}, {"not_ready", nil, Cold}, {"what", nil, Internal},
	} {
		if got := CauseOfFailure(c.reason, c.r); got != c.want {
			t.Errorf("%s, %+v: %q, want %q", c.reason, c.r, got, c.want)
		}
	}
}

// TestCauseOfWait: lanes without room are full for what takes their time, if they would have room
// without it.
func TestCauseOfWait(t *testing.T) {
	type parts = [Components]time.Duration
	for _, c := range []struct {
		name  string
		spent parts
		busy  float64
		want  Cause
	}{
		{"room", parts{RanAsProfiled: 2 * time.Second, LackedCPU: 2 * time.Second}, 0.8, ""},
		{"nothing lost", parts{RanAsProfiled: 5 * time.Second}, 1, Lane},
		{"a quota", parts{RanAsProfiled: 2 * time.Second, WasThrottled: 3 * time.Second}, 1, Throttled},
		{"too much even so", parts{RanAsProfiled: 4 * time.Second, LackedCPU: time.Second}, 2, Lane},
	} {
		if got := CauseOfWait(&c.spent, c.busy); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
