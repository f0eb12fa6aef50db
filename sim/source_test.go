package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/sim/workload"
)

// TestLargestRun: simulated queries merge into no run that is larger than the largest that was
// measured, since what it would take is not known.
func TestLargestRun(t *testing.T) {
	samples, err := profiles.ReadSamples("own.csv", strings.NewReader(
		"model,instance_type,batch_size,sample_ms\nown,r5n.large,1,1\nown,r5n.large,100,3\n"))
	if err != nil {
		t.Fatal(err)
	}
	sizes, err := workload.Fixed(50)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewSource(samples).Model("own", []string{"r5n.large"}, sizes, 25*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Merge: merge.Deadline}
	if got := c.largestRun(&m); got != 100 {
		t.Errorf("a run has up to %d items, 100 were measured", got)
	}
}
