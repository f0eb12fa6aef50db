package leader

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// profile is one of a latency that does not depend on the batch size.
func profile(t testing.TB, mean time.Duration) *profiles.Table {
	t.Helper()
	knot := profiles.Knot{BatchSize: 1, Mean: mean, P50: mean, P90: mean * 11 / 10, P99: mean * 13 / 10}
	table, err := profiles.NewTable(profiles.Key{Model: "m", InstanceType: "box", Provider: "cpu"}, profiles.Learned, "a test", []profiles.Knot{knot})
	if err != nil {
		t.Fatal(err)
	}
	return table
}
