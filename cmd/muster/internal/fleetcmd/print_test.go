package fleetcmd

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/control"
)

// TestPrintIdle: a fleet whose leader cannot rent is told in a sentence, not as a state of renting.
func TestPrintIdle(t *testing.T) {
	for fault, want := range map[string]string{
		"the leader runs without --rent FILE": "no agent rents machines now: the leader runs " +
			"without --rent FILE\n",
		"": "no agent rents machines now: the leader is new\n",
	} {
		var b strings.Builder
		if err := Print(&b, &control.FleetState{Fault: fault}); err != nil || b.String() != want {
			t.Errorf("got %q, %v, want %q", &b, err, want)
		}
	}
}
