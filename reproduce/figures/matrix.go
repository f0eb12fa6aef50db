package figures

import (
	"image/color"
	"strconv"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/leader/place"
)

// A matrix has a number for each two models, darker the higher it is.
type matrix struct {
	title    string
	models   []string
	values   map[[2]int]float64
	low, top float64 // of the colours
}

func newMatrix(title string, profiles []*place.Profile) *matrix {
	m := &matrix{title: title, values: map[[2]int]float64{}, low: 0.5, top: 1}
	for _, p := range profiles {
		m.models = append(m.models, p.Model)
	}
	return m
}

// set sets the number of two models, whatever their order.
func (m *matrix) set(a, b *place.Profile, value float64) {
	var at [2]int
	for i, name := range m.models {
		if name == a.Model {
			at[0] = i
		}
		if name == b.Model {
			at[1] = i
		}
	}
	m.values[at], m.values[[2]int{at[1], at[0]}] = value, value
}

// NewPanel makes the picture.
func (m *matrix) NewPanel() *picture.Panel {
	p := picture.New(m.title, "", "")
	n := float64(len(m.models))
	p.Width, p.Height, p.Headroom = 480, 330, 0
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = -.5, n-.5, -.5, n-.5
	p.NameX(m.models...)
	p.NameY(m.models...)
	p.Add(m)
	return p
}

// Plot draws the cells.
func (m *matrix) Plot(c picture.Canvas, p *picture.Panel) {
	x, y := p.Transforms(c)
	style := picture.TextOf(8.5)
	style.XAlign, style.YAlign = picture.Middle, picture.Middle
	for at, value := range m.values {
		column, row := float64(at[0]), float64(at[1])
		part := min(max((value-m.low)/(m.top-m.low), 0), 1)
		fill := picture.Colour(0)
		mix := func(v uint8) uint8 { return uint8(255 - part*0.8*float64(255-v)) }
		c.FillPolygon(color.RGBA{mix(fill.R), mix(fill.G), mix(fill.B), 255}, []picture.Point{
			{X: x(column - .5), Y: y(row - .5)}, {X: x(column + .5), Y: y(row - .5)},
			{X: x(column + .5), Y: y(row + .5)}, {X: x(column - .5), Y: y(row + .5)},
		})
		c.FillText(style, picture.Point{X: x(column), Y: y(row)}, strconv.FormatFloat(value, 'f', 2, 64))
	}
}
