package members

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
)

// TestLongDescription: what an agent says of itself goes to all others, and is bounded.
func TestLongDescription(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	good := func() *control.Member {
		return agentWith("a", 1, &control.Model{
			Name: "ncf", Version: 1, QosTargetNs: 1, QosPercentile: .99, LargestBatchSize: 1,
		})
	}
	if err := CheckDescription(good(), "a", control.Spoken); err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*control.Member){
		"one of its address":   func(m *control.Member) { m.InstanceType = long },
		"names of at most 255": func(m *control.Member) { m.Models[0].Family = long },
		"its description has 1677": func(m *control.Member) {
			m.Models[0].Metadata.Platform = strings.Repeat(long, 16)
		},
	} {
		m := good()
		m.Models[0].Metadata = &inference.ModelMetadataResponse{}
		change(m)
		if err := CheckDescription(m, "a", control.Spoken); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("got %.200v, want %q", err, says)
		}
	}
}
