package charts

import (
	"testing"

	"github.com/muster-serve/muster/api/picture/picturetest"
	"github.com/muster-serve/muster/leader/plan"
)

// TestPlansHaveTheirPicture: the picture of plans names each and its price.
func TestPlansHaveTheirPicture(t *testing.T) {
	plans := []plan.Plan{{Price: 2.463, Bound: 7400}, {Price: 2.166, Bound: 6400}}
	simulated := []plan.Estimate{{Value: 7100, StdErr: 200}, {Value: 6300}}
	names := []string{"(1,0,13,0)", "(1,0,11,0)"}
	drawing, err := plansPicture("ncf: plans", names, plans, simulated)
	if err != nil {
		t.Fatal(err)
	}
	d := picturetest.Check(t, drawing)
	for _, words := range append(names, "2.46", "2.17", "7400", "7100", "upper bound", "$/hr") {
		if len(d.Find(words)) == 0 {
			t.Errorf("no %q in the picture", words)
		}
	}
	if _, err := plansPicture("", names[:1], plans, simulated); err == nil {
		t.Error("one name of two plans is no error")
	}
}
