package figures

import (
	"github.com/muster-serve/muster/api/picture"
)

// A lineChart has a line for each series, over 1, 2, 3, ...
type lineChart struct {
	title, xLabel, yLabel string
	series                []picture.Series // errors are not drawn
	line                  float64          // a dashed line across at this value; 0: none
	lineName              string           // what it is
}

// NewPanel makes the chart.
func (c *lineChart) NewPanel() *picture.Panel {
	p := picture.New(c.title, c.xLabel, c.yLabel)
	p.Y.Min, p.Y.Max, p.X.Min = 0, c.line, 0
	p.Add(picture.Grid{})
	for i, s := range c.series {
		v := &picture.Curve{LineStyle: picture.LineOf(i), Mark: picture.MarkOf(i)}
		v.Mark.Radius = 2.5
		for j, y := range s.Values {
			v.Values = append(v.Values, picture.Point{X: float64(j + 1), Y: y})
		}
		p.Add(v)
		p.Legend(s.Name, v)
	}
	if c.line > 0 {
		rule := picture.Rule{At: c.line, Color: picture.Dark}
		p.Add(rule)
		p.Legend(c.lineName, rule)
	}
	p.X.Max++
	return p
}
