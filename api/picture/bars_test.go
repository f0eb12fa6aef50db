package picture_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/api/picture/picturetest"
)

// TestBars: every bar has its value, one that is not there says so, and values and legend are in
// the frame, with few bars and many.
func TestBars(t *testing.T) {
	for _, n := range []int{1, 2, 9} {
		for _, groups := range []int{1, 5, 20} {
			c := picture.BarChart{Title: "title", YLabel: "queries/s", Line: 5, LineName: "a line"}
			for g := range groups {
				c.Groups = append(c.Groups, fmt.Sprintf("(1,0,%d,0)", g))
			}
			for i := range n {
				s := picture.Series{Name: fmt.Sprintf("series %d", i)}
				for g := range groups {
					s.Values = append(s.Values, 1.25+float64(1000*i+g))
					s.Errors = append(s.Errors, 40)
				}
				c.Series = append(c.Series, s)
			}
			c.Series[0].Values[0] = math.NaN()
			d := picturetest.Check(t, picture.Page(1, c.NewPanel()))
			if got := len(d.Find("series")); got != n {
				t.Errorf("%d series in the legend, want %d", got, n)
			}
			if len(d.Find("none")) != 1 {
				t.Errorf("the bar that is not there is marked %d times", len(d.Find("none")))
			}
			for _, s := range c.Series {
				for _, v := range s.Values {
					if len(d.Find(picture.ValueLabel(v))) == 0 {
						t.Errorf("%d series of %d: no bar has the value %s", n, groups,
							picture.ValueLabel(v))
					}
				}
			}
		}
	}
}
