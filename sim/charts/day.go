package charts

import (
	"io"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/sim/day"
	"github.com/muster-serve/muster/sim/renting"
)

// DrawDays draws, in a format of [picture.Format], the days of one or several forms as four curves
// over the hours: dollars, accuracy, the share in time, and the use of the machines.
func DrawDays(w io.Writer, format string, all []*day.Result) error {
	return daysPicture(all).Write(w, format)
}

func daysPicture(all []*day.Result) *picture.Picture {
	// from and to are always in a panel, so that curves that hardly change look so.
	panel := func(title, label string, from, to float64,
		of func(*renting.Totals) float64) *picture.Panel {
		p := picture.New(title, "hour", label)
		p.Height, p.Y.Min, p.Y.Max = 220, from, to
		p.Add(picture.Grid{})
		for i, r := range all {
			v := &picture.Curve{LineStyle: picture.LineOf(i)}
			for k := range r.Windows {
				t := &r.Windows[k]
				v.Values = append(v.Values, picture.Point{
					X: t.StartH + renting.Window.Hours()/2, Y: of(t),
				})
			}
			p.Add(v)
			p.Legend(r.Form, v)
		}
		return p
	}
	return picture.Page(2,
		panel("Cost", "$/hr", 0, 0, func(t *renting.Totals) float64 { return t.Dollars / t.Hours }),
		panel("Accuracy of the answers", "", .99, 1,
			func(t *renting.Totals) float64 { return t.Accuracy }),
		panel("Queries answered in time", "%", 99, 100,
			func(t *renting.Totals) float64 { return 100 * t.InTime }),
		panel("Time in which machines run queries", "%", 0, 0,
			func(t *renting.Totals) float64 { return 100 * t.Use }),
	)
}
