package choose

import (
	"testing"
	"time"
)

// TestBootTimesLearned: a boot that is longer than expected counts at once, shorter ones by and by;
// what cannot be a boot does not count, and types are learned each by itself.
func TestBootTimesLearned(t *testing.T) {
	c := New(Config{})
	for _, took := range []time.Duration{0, -time.Minute, 2 * time.Hour} {
		c.ObserveBoot("g4dn.xlarge", took)
	}
	if got := c.BootTimes(); len(got) > 0 || c.boots.of("g4dn.xlarge") != time.Minute {
		t.Errorf("learned %v from what was no boot", got)
	}
	c.ObserveBoot("g4dn.xlarge", 4*time.Minute)
	c.ObserveBoot("g4dn.xlarge", 5*time.Minute)
	if got := c.boots.of("g4dn.xlarge"); got != 5*time.Minute {
		t.Errorf("after 4 and 5 min %v is expected", got)
	}
	for range 30 {
		c.ObserveBoot("g4dn.xlarge", time.Minute)
	}
	if got := c.boots.of("g4dn.xlarge"); got < time.Minute || got > 70*time.Second {
		t.Errorf("after thirty minutes %v is expected", got)
	}
	if got := c.boots.of("r5n.large"); got != starting {
		t.Errorf("of another type %v is expected", got)
	}
}
