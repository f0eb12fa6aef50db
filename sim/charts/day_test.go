package charts

import (
	"testing"

	"github.com/muster-serve/muster/api/picture/picturetest"
	"github.com/muster-serve/muster/sim/day"
	"github.com/muster-serve/muster/sim/renting"
)

// TestDaysHaveTheirPicture: the picture of days has four curves for each form.
func TestDaysHaveTheirPicture(t *testing.T) {
	var all []*day.Result
	for _, form := range day.Forms() {
		r := &day.Result{Form: form}
		for i := range 144 {
			r.Windows = append(r.Windows, renting.Totals{
				StartH: float64(i) / 6, Hours: 1. / 6, Dollars: .2, InTime: .999, Accuracy: .98,
				Use: .6,
			})
		}
		all = append(all, r)
	}
	d := picturetest.Check(t, daysPicture(all))
	for _, form := range day.Forms() {
		if n := len(d.Find(form)); n != 4 {
			t.Errorf("%s is in %d legends, want 4", form, n)
		}
	}
	for _, words := range []string{"$/hr", "Cost", "Accuracy of the answers",
		"Queries answered in time", "Time in which machines run queries"} {
		if len(d.Find(words)) == 0 {
			t.Errorf("no %q in the picture", words)
		}
	}
}
