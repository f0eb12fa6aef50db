package profiles_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
)

// TestManyChanges: a machine whose speed changes again and again, as beside a noisy neighbour,
// makes less and less of what was seen at other batch sizes before, but never nothing: what was
// learned can be used, saved and loaded.
func TestManyChanges(t *testing.T) {
	l := profiles.NewLearner(profiles.Key{Model: "m", InstanceType: "t"}, nil)
	now := time.Unix(1e9, 0).UTC()
	observe := func(n, batch int, latency time.Duration) {
		for range n {
			if err := l.Observe(batch, latency, "a", now); err != nil {
				t.Fatal(err)
			}
		}
	}
	observe(40, 1, time.Millisecond)
	for i := range 1000 {
		now = now.Add(time.Second)
		observe(25, 100, []time.Duration{2, 6}[i%2]*time.Millisecond)
		usable(t, l)
		if t.Failed() {
			t.Fatalf("after %d changes", l.Changes())
		}
	}
	if l.Changes() < 900 {
		t.Errorf("%d changes, expected about 1000", l.Changes())
	}
}

// usable checks that a learner makes a valid profile, and can be saved and loaded.
func usable(t interface{ Errorf(string, ...any) }, l *profiles.Learner) {
	if table := l.LatencyTable(); table != nil {
		last := time.Duration(0)
		for b := 1; b <= profiles.MaxBatchSize; b *= 4 {
			mean, e := table.Mean(b), table.Error(b)
			if mean < last || mean <= 0 || !(e >= 0) || math.IsInf(e, 1) {
				t.Errorf("mean %v and error %v at batch size %d, %v before", mean, e, b, last)
			}
			last = mean
		}
	}
	data, err := json.Marshal(l)
	if err != nil {
		t.Errorf("cannot be saved: %v", err)
	} else if err := json.Unmarshal(data, new(profiles.Learner)); err != nil {
		t.Errorf("cannot be loaded: %v", err)
	}
}

// wide draws a number of any size within bounds, and often a bound.
func wide(low, high float64) *rapid.Generator[float64] {
	return rapid.Custom(func(t *rapid.T) float64 {
		least := max(low, 1e-300)
		at := math.Log(least) + (math.Log(high)-math.Log(least))*rapid.Float64Range(0, 1).Draw(t,
			"at")
		return rapid.SampledFrom([]float64{low, high, min(max(math.Exp(at), least), high),
			min(max(math.Exp(at), least), high)}).Draw(t, "of")
	})
}

// TestExtremeLatencies: whatever latencies queries have, up to the longest that is accepted, the
// profile stays a valid one that can be saved and loaded.
func TestExtremeLatencies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := profiles.NewLearner(profiles.Key{}, nil)
		now := time.Unix(1e9, 0).UTC()
		for range rapid.IntRange(1, 30).Draw(t, "loads") {
			batch := rapid.IntRange(1, profiles.MaxBatchSize).Draw(t, "batch")
			latency := time.Duration(wide(1, float64(24*time.Hour)).Draw(t, "latency"))
			agent := names.AgentName(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "agent"))
			for range rapid.IntRange(1, 40).Draw(t, "queries") {
				if err := l.Observe(batch, latency, agent, now); err != nil {
					t.Fatal(err)
				}
			}
			now = now.Add(time.Duration(rapid.IntRange(-1, 20).Draw(t, "pause")) * time.Minute)
			usable(t, l)
		}
	})
}

// TestExtremeState: a state file whose numbers are within their bounds, however unlikely together,
// gives a learner that can be used, or an error.
func TestExtremeState(t *testing.T) {
	start, err := json.Marshal(profiles.NewLearner(profiles.Key{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		var state map[string]any
		if err := json.Unmarshal(start, &state); err != nil {
			t.Fatal(err)
		}
		state["observed"] = rapid.IntRange(1, 100).Draw(t, "observed")
		var bins []any
		for _, batch := range rapid.SliceOfNDistinct(rapid.SampledFrom([]int{1, 2, 9, 100, 3000,
			65536}), 1, 6, rapid.ID).Draw(t, "batches") {
			bins = append(bins, map[string]any{
				"batch_size": batch, "queries": wide(1e-300, 501).Draw(t, "queries"),
				"latency_ms": wide(1e-300, 1e12).Draw(t, "latency"),
				"noise":      wide(0, 1e3).Draw(t, "noise"),
			})
		}
		state["bins"] = bins
		if rapid.Bool().Draw(t, "agent") {
			state["agents"] = []any{map[string]any{
				"name": "a", "factor": wide(1e-9, 1e9).Draw(t, "factor"),
				"variance": wide(0, 1e6).Draw(t, "variance"),
				"queries":  wide(0, 501).Draw(t, "its"), "seen": time.Unix(0, 0).UTC(),
			}}
		}
		data, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		var l profiles.Learner
		if json.Unmarshal(data, &l) != nil {
			return
		}
		usable(t, &l)
		for range 3 {
			latency := time.Duration(wide(1, float64(24*time.Hour)).Draw(t, "then"))
			if err := l.Observe(rapid.SampledFrom([]int{1, 50, 3000}).Draw(t, "size"), latency, "a",
				time.Unix(1, 0).UTC()); err != nil {
				t.Fatal(err)
			}
			usable(t, &l)
		}
	})
}
