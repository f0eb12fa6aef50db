package accuracy

import (
	"strings"
	"testing"
)

func TestExcludes(t *testing.T) {
	for _, c := range []struct {
		accuracy float64
		best     []float64
		want     bool
	}{
		{1, []float64{1}, false},
		{.5, []float64{1, .5}, false},
		{.4999, []float64{1, .4999}, true},
		{.044, []float64{.044, 1}, true},
		{.044, []float64{.044}, false}, // it is the best
		{.3, []float64{.5, .3}, false}, // of accuracies that are no shares of the best
		{.3, []float64{0, .3}, true},   // an unknown one counts as 1
		{0, []float64{1, 0}, false},
		{.2, nil, false},
	} {
		best := Best{}
		best.Add("other", 1)
		for _, a := range c.best {
			best.Add("ctr", a)
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
	for _, want := range []string{`"ctr"`, "0.044", "0.5", "best one's, 1;", "model.yaml"} {
		if why := best.Why("ctr", .044); !strings.Contains(why, want) {
			t.Errorf("the reason is %q, want %s in it", why, want)
		}
	}
}
