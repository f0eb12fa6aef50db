package leader

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// flatProfile is one of a latency that does not depend on the batch size.
func flatProfile(mean time.Duration) (*profiles.Table, error) {
	knot := func(batch int) profiles.Knot {
		return profiles.Knot{
			BatchSize: batch, Mean: mean, P50: mean, P90: mean * 11 / 10, P99: mean * 13 / 10,
		}
	}
	key := profiles.Key{Model: "m", InstanceType: "box", Provider: "cpu"}
	return profiles.NewTable(key, profiles.Learned, "a test", []profiles.Knot{knot(1), knot(100)})
}

func profile(t testing.TB, mean time.Duration) *profiles.Table {
	t.Helper()
	table, err := flatProfile(mean)
	if err != nil {
		t.Fatal(err)
	}
	return table
}
