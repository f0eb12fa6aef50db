package sim

import (
	"testing"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/latency"
)

// TestRentingFamilyOfEquals: machines are planned for the first of the variants that are equally
// accurate, which is that of a day without placement.
func TestRentingFamilyOfEquals(t *testing.T) {
	m, err := NewSource(nil).Model("rm2", []string{"r5n.large"}, workload.Trace(), 0)
	if err != nil {
		t.Fatal(err)
	}
	first := m.Latencies
	second := map[string]match.Latencies{"r5n.large": latency.Scaled(first["r5n.large"], .5)}
	m.SetVariants([]Variant{
		{Name: "worse", Accuracy: .9, Latencies: second},
		{Name: "first", Accuracy: 1, Latencies: first},
		{Name: "second", Accuracy: 1, Latencies: second},
	})
	got, want := m.RentingFamily().Latencies["r5n.large"].Mean(100), first["r5n.large"].Mean(100)
	if got != want {
		t.Errorf("planned for a latency of %v, want %v", got, want)
	}
}
