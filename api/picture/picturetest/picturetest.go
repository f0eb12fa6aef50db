// Package picturetest looks at pictures for tests: what text stands where, and which lines are
// drawn.
package picturetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/picture"
)

// A Drawing is what was drawn of a picture.
type Drawing struct {
	Width, Height float64
	Texts         []Text
	Strokes       []Stroke
}

// A Text is a line of text and the box around it.
type Text struct {
	String string
	Box    picture.Rectangle
}

// A Stroke is a line through points, in a colour (as fmt.Sprint has it) and with dashes.
type Stroke struct {
	Color, Dashes string
	Grey          bool // or black: a frame, an axis, a rule, a whisker
	Points        []picture.Point
}

// Find returns the texts that contain the words.
func (d *Drawing) Find(words string) (found []Text) {
	for _, t := range d.Texts {
		if strings.Contains(t.String, words) {
			found = append(found, t)
		}
	}
	return found
}

// Check draws the picture and fails the test where one that reads it would stumble: over a
// text beyond the edge, over two texts upon each other, or over a coloured
// line through a text.
func Check(t *testing.T, p *picture.Picture) *Drawing {
	t.Helper()
	drawn := p.Draw()
	d := &Drawing{Width: drawn.Width, Height: drawn.Height}
	d.read(drawn.Elements)
	const slack = 0.5 // points
	for i, one := range d.Texts {
		if one.Box.Min.X < -slack || one.Box.Min.Y < -slack || one.Box.Max.X > d.Width+slack ||
			one.Box.Max.Y > d.Height+slack {
			t.Errorf("%q is at %v, beyond the picture's %v x %v", one.String, one.Box, d.Width,
				d.Height)
		}
		for _, other := range d.Texts[:i] {
			if overlap(shrinkBox(one.Box), shrinkBox(other.Box)) {
				t.Errorf("%q at %v and %q at %v are upon each other", one.String, one.Box,
					other.String, other.Box)
			}
		}
		for _, s := range d.Strokes {
			if s.Grey {
				continue
			}
			for k := range s.Points[1:] {
				if crossesBox(s.Points[k], s.Points[k+1], shrinkBox(one.Box)) {
					t.Errorf("a line of colour %s runs through %q at %v", s.Color, one.String,
						one.Box)
					break
				}
			}
		}
	}
	return d
}

func (d *Drawing) read(elements []any) {
	for _, element := range elements {
		switch e := element.(type) {
		case picture.Line:
			r, g, b, _ := e.Color.RGBA()
			d.Strokes = append(d.Strokes, Stroke{
				fmt.Sprint(e.Color), fmt.Sprint(e.Dashes), r == g && g == b, e.Points,
			})
		case picture.Text:
			if e.String != "" {
				d.Texts = append(d.Texts, Text{e.String, e.Frame()})
			}
		}
	}
}

func shrinkBox(r picture.Rectangle) picture.Rectangle {
	const by = 0.5
	return picture.Rectangle{
		Min: r.Min.Add(picture.Point{X: by, Y: by}), Max: r.Max.Sub(picture.Point{X: by, Y: by}),
	}
}

func overlap(a, b picture.Rectangle) bool {
	return a.Min.X < b.Max.X && b.Min.X < a.Max.X && a.Min.Y < b.Max.Y && b.Min.Y < a.Max.Y
}

// crossesBox reports whether the line from p to q touches the box (Liang and Barsky).
func crossesBox(p, q picture.Point, r picture.Rectangle) bool {
	from, to := 0.0, 1.0
	for _, edge := range [][2]float64{
		{p.X - q.X, p.X - r.Min.X}, {q.X - p.X, r.Max.X - p.X},
		{p.Y - q.Y, p.Y - r.Min.Y}, {q.Y - p.Y, r.Max.Y - p.Y},
	} {
		switch direction, distance := edge[0], edge[1]; {
		case direction == 0 && distance < 0:
			return false
		case direction < 0:
			from = max(from, distance/direction)
		case direction > 0:
			to = min(to, distance/direction)
		}
	}
	return from <= to
}
