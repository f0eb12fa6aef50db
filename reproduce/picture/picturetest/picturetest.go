// Package picturetest looks at pictures for tests: what text stands where, and which lines are
// drawn.
package picturetest

import (
	"fmt"
	"image/color"
	"math"
	"strings"
	"testing"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/recorder"

	"github.com/muster-serve/muster/reproduce/picture"
)

// A Drawing is what was drawn of a picture.
type Drawing struct {
	Width, Height vg.Length
	Texts         []Text
	Strokes       []Stroke
}

// A Text is a line of text and the box around it.
type Text struct {
	String string
	Box    vg.Rectangle
}

// A Stroke is a line through points, in a colour (as fmt.Sprint has it) and with dashes.
type Stroke struct {
	Color, Dashes string
	Grey          bool // or black: a frame, an axis, a rule, a whisker
	Points        []vg.Point
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
// text with serifs or beyond the edge, over two texts upon each other, or over a coloured
// line through a text.
func Check(t *testing.T, p *picture.Picture) *Drawing {
	t.Helper()
	var canvas recorder.Canvas
	p.Draw(&canvas)
	d := &Drawing{}
	d.Width, d.Height = p.Size()
	d.read(t, canvas.Actions)
	const slack = 0.5 // points
	for i, one := range d.Texts {
		if one.Box.Min.X < -slack || one.Box.Min.Y < -slack || one.Box.Max.X > d.Width+slack ||
			one.Box.Max.Y > d.Height+slack {
			t.Errorf("%q is at %v, beyond the picture's %v x %v", one.String, one.Box, d.Width,
				d.Height)
		}
		for _, other := range d.Texts[:i] {
			if overlap(shrunk(one.Box), shrunk(other.Box)) {
				t.Errorf("%q at %v and %q at %v are upon each other", one.String, one.Box,
					other.String, other.Box)
			}
		}
		for _, s := range d.Strokes {
			if s.Grey {
				continue
			}
			for k := range s.Points[1:] {
				if crosses(s.Points[k], s.Points[k+1], shrunk(one.Box)) {
					t.Errorf("a line of colour %s runs through %q at %v", s.Color, one.String,
						one.Box)
					break
				}
			}
		}
	}
	return d
}

// A transform turns and then moves points.
type transform struct{ a, b, c, d, x, y float64 }

func (m transform) of(p vg.Point) vg.Point {
	x, y := float64(p.X), float64(p.Y)
	return vg.Point{X: vg.Length(m.a*x + m.c*y + m.x), Y: vg.Length(m.b*x + m.d*y + m.y)}
}

// after is first n, then m.
func (m transform) after(n transform) transform {
	return transform{
		m.a*n.a + m.c*n.b, m.b*n.a + m.d*n.b, m.a*n.c + m.c*n.d, m.b*n.c + m.d*n.d,
		m.a*n.x + m.c*n.y + m.x, m.b*n.x + m.d*n.y + m.y,
	}
}

func (d *Drawing) read(t *testing.T, actions []recorder.Action) {
	t.Helper()
	now := transform{a: 1, d: 1}
	var stack []transform
	var colour color.Color = color.Black
	dash := "[]"
	for _, action := range actions {
		switch a := action.(type) {
		case *recorder.Push:
			stack = append(stack, now)
		case *recorder.Pop:
			now, stack = stack[len(stack)-1], stack[:len(stack)-1]
		case *recorder.Rotate:
			sin, cos := math.Sincos(a.Angle)
			now = now.after(transform{a: cos, b: sin, c: -sin, d: cos})
		case *recorder.Translate:
			now = now.after(transform{a: 1, d: 1, x: float64(a.Point.X), y: float64(a.Point.Y)})
		case *recorder.Scale:
			now = now.after(transform{a: a.X, d: a.Y})
		case *recorder.SetColor:
			colour = a.Color
		case *recorder.SetLineDash:
			dash = fmt.Sprint(a.Dashes)
		case *recorder.Stroke:
			r, g, b, _ := colour.RGBA()
			s := Stroke{Color: fmt.Sprint(colour), Dashes: dash, Grey: r == g && g == b}
			for _, part := range a.Path {
				if part.Type == vg.MoveComp || part.Type == vg.LineComp {
					s.Points = append(s.Points, now.of(part.Pos))
				}
			}
			if len(s.Points) > 1 {
				d.Strokes = append(d.Strokes, s)
			}
		case *recorder.FillString:
			if a.Font.Typeface != "Liberation" || a.Font.Variant != "Sans" {
				t.Errorf("%q is in %s %s, want Liberation Sans", a.String, a.Font.Typeface,
					a.Font.Variant)
			}
			d.Texts = append(d.Texts, Text{a.String, boxOf(a, now)})
		}
	}
}

// boxOf is the box around a line of text: from its baseline to the height of a capital.
func boxOf(a *recorder.FillString, now transform) vg.Rectangle {
	style := picture.Text(float64(a.Size))
	width, height := style.Width(a.String), 0.72*a.Size
	r := vg.Rectangle{
		Min: vg.Point{X: vg.Inch * 1e3, Y: vg.Inch * 1e3}, Max: vg.Point{X: -1e6, Y: -1e6},
	}
	for _, corner := range []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}} {
		p := now.of(a.Point.Add(corner))
		r.Min.X, r.Min.Y = min(r.Min.X, p.X), min(r.Min.Y, p.Y)
		r.Max.X, r.Max.Y = max(r.Max.X, p.X), max(r.Max.Y, p.Y)
	}
	return r
}

func shrunk(r vg.Rectangle) vg.Rectangle {
	const by = 0.5
	return vg.Rectangle{
		Min: r.Min.Add(vg.Point{X: by, Y: by}), Max: r.Max.Sub(vg.Point{X: by, Y: by}),
	}
}

func overlap(a, b vg.Rectangle) bool {
	return a.Min.X < b.Max.X && b.Min.X < a.Max.X && a.Min.Y < b.Max.Y && b.Min.Y < a.Max.Y
}

// crosses reports whether the line from p to q touches the box (Liang and Barsky).
func crosses(p, q vg.Point, r vg.Rectangle) bool {
	from, to := 0.0, 1.0
	for _, edge := range [][2]float64{
		{float64(p.X - q.X), float64(p.X - r.Min.X)}, {float64(q.X - p.X), float64(r.Max.X - p.X)},
		{float64(p.Y - q.Y), float64(p.Y - r.Min.Y)}, {float64(q.Y - p.Y), float64(r.Max.Y - p.Y)},
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
