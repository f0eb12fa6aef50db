package day

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/renting"
)

// TestText: the text has a line for each hour of the first form, one for each form, and the faults.
func TestText(t *testing.T) {
	all := []*Result{{Form: Joint, Floor: .98}, {Form: Fixed, Fleet: "2 a"}}
	for _, r := range all {
		for i := range 9 {
			r.Windows = append(r.Windows, renting.Totals{
				StartH: float64(i) / 6, Hours: 1. / 6, Rate: 40, Dollars: .1, Machines: 2,
				Queries: 100, Answered: 100, Late: i / 8, InTime: 1, Accuracy: 1, Use: .5,
			})
		}
		r.Totals = renting.Sum(r.Windows)
	}
	all[0].Faults = []fleet.Result{{Fault: "kill-leader@1h", Agent: "a-1", NextLeader: "a-2"}}
	var b strings.Builder
	if err := Text(&b, all, 60); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"     0       40.0       2.0  0.60  100.00 %    1.0000  50 %",
		"     1       40.0       2.0  0.30   99.67 %    1.0000  50 %",
		"   all       40.0       2.0  0.90   99.89 %    1.0000  50 %",
		"  joint  0.90  99.89 %    1.0000  0.9800  50 %",
		"fixed: a fixed fleet for the peak, 2 a,", "kill-leader@1h: it hit a-1, and a-2 led",
		"900 queries: one second of each 60 of the day",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
