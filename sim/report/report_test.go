package report

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/sim"
)

func TestInterrupted(t *testing.T) {
	var b strings.Builder
	err := Text(&b, &sim.Report{Interrupted: true})
	if err != nil || !strings.Contains(b.String(), "\ninterrupted: ") {
		t.Errorf("says %q, %v", &b, err)
	}
}
