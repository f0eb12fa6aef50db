package charts

import (
	"fmt"
	"math"
	"testing"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/api/picture/picturetest"
	"github.com/muster-serve/muster/leader/plan"
)

// TestBars: every bar has its value, one that is not there says so, and values and legend are in
// the frame, with few bars and many.
func TestBars(t *testing.T) {
	for _, n := range []int{1, 2, 9} {
		for _, groups := range []int{1, 5, 20} {
			c := chart{title: "title", yLabel: "queries/s", line: 5, lineName: "a line"}
			for g := range groups {
				c.groups = append(c.groups, fmt.Sprintf("(1,0,%d,0)", g))
			}
			for i := range n {
				s := series{name: fmt.Sprintf("series %d", i)}
				for g := range groups {
					s.values = append(s.values, 1.25+float64(1000*i+g))
					s.errors = append(s.errors, 40)
				}
				c.series = append(c.series, s)
			}
			c.series[0].values[0] = math.NaN()
			d := picturetest.Check(t, picture.Page(1, c.newPanel()))
			if got := len(d.Find("series")); got != n {
				t.Errorf("%d series in the legend, want %d", got, n)
			}
			if len(d.Find("none")) != 1 {
				t.Errorf("the bar that is not there is marked %d times", len(d.Find("none")))
			}
			for _, s := range c.series {
				for _, v := range s.values {
					if len(d.Find(valueLabel(v))) == 0 {
						t.Errorf("%d series of %d: no bar has the value %s", n, groups,
							valueLabel(v))
					}
				}
			}
		}
	}
}

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
