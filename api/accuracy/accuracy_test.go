package accuracy

import (
	"strings"
	"testing"
)

func TestExcludes(t *testing.T) {
	for _, c := range []struct {
		accuracy float64
		best     []float64
		stated   []float64
		want     bool
	}{
		{1, []float64{1}, nil, false},
		{.8, []float64{1, .8}, nil, false},
		{.7999, []float64{1, .7999}, nil, true},
		{.044, []float64{.044, 1}, nil, true},
		{.044, []float64{.044}, nil, false},   // it is the best
		{.42, []float64{.5, .42}, nil, false}, // of accuracies that are no shares of the best
		{.3, []float64{0, .3}, nil, true},     // an unknown one counts as 1
		{0, []float64{1, 0}, nil, false},
		{.2, nil, nil, false},
		{.98, []float64{1}, []float64{.99}, true},
		{.98, []float64{1}, []float64{.5, .99, .9}, true}, // the strictest counts
		{.99, []float64{1}, []float64{.99}, false},
		{.6, []float64{1}, []float64{.6}, false}, // below what would count without
		{.59, []float64{1}, []float64{0, .6}, true},
		{.7, []float64{1}, []float64{-1, 2}, true}, // no accuracies
		{0, []float64{0}, []float64{1}, false},
	} {
		best := Best{}
		best.Add("other", 1)
		for _, a := range c.best {
			best.Add("ctr", a)
		}
		for _, floor := range c.stated {
			best.Require("ctr", floor)
		}
		if got := best.Excludes("ctr", c.accuracy); got != c.want {
			t.Errorf("%v beside %v: excluded is %t, want %t", c.accuracy, c.best, got, c.want)
		}
		if why := best.Why("ctr", c.accuracy); (why != "") != c.want {
			t.Errorf("%v beside %v: the reason is %q", c.accuracy, c.best, why)
		}
	}
	best := Best{}
	best.Add("ctr", 1)
	for _, want := range []string{`"ctr"`, "0.044", "0.8", "best one's, 1;", "model.yaml"} {
		if why := best.Why("ctr", .044); !strings.Contains(why, want) {
			t.Errorf("the reason is %q, want %s in it", why, want)
		}
	}
	best.Require("ctr", .99)
	if why := best.Why("ctr", .98); !strings.Contains(why, "less than 0.99, the min_accuracy") {
		t.Errorf("the reason is %q, want the stated accuracy", why)
	}
}
