package picture

import (
	"image/color"
	"math"
)

// A Point is a place in a picture, in points from its left lower corner.
type Point struct{ X, Y float64 }

// Add returns the place that is q further.
func (p Point) Add(q Point) Point { return Point{p.X + q.X, p.Y + q.Y} }

// Sub returns the place that is q less far.
func (p Point) Sub(q Point) Point { return Point{p.X - q.X, p.Y - q.Y} }

// A Rectangle is between its left lower and its right upper corner.
type Rectangle struct{ Min, Max Point }

// Size is the width and the height.
func (r Rectangle) Size() Point { return r.Max.Sub(r.Min) }

// Center is the place in the middle.
func (r Rectangle) Center() Point { return Point{(r.Min.X + r.Max.X) / 2, (r.Min.Y + r.Max.Y) / 2} }

// corners are the four, against the clock.
func (r Rectangle) corners() []Point {
	return []Point{r.Min, {r.Max.X, r.Min.Y}, r.Max, {r.Min.X, r.Max.Y}}
}

// A LineStyle is how a line is drawn.
type LineStyle struct {
	Color  color.Color // nothing is drawn if it is transparent
	Width  float64
	Dashes []float64 // lengths of dashes and gaps in turn; nil: the line has none
}

// A MarkStyle is how a point is drawn.
type MarkStyle struct {
	Color  color.Color
	Radius float64
	Shape  Shape
}

// A Shape is the one of a mark.
type Shape int

// Shapes of marks. Discs, squares and pyramids are filled, the others are drawn with lines.
const (
	NoMark Shape = iota
	Disc
	Square
	Pyramid
	Ring
	Box
	Triangle
	Cross
	Plus
)

// Parts of a text that stand at its place.
const (
	Left = iota // or the bottom: the baseline
	Middle
)

// A TextStyle is how a text is drawn.
type TextStyle struct {
	Size           float64
	Color          color.Color
	XAlign, YAlign int  // Left or Middle, along the text and across it
	Turned         bool // by a quarter, so that it runs upwards
}

// capitals is the height of a capital as a share of the size of a text.
const capitals = 0.72

// A Drawing is what was drawn, the first at the bottom.
type Drawing struct {
	Width, Height float64
	Elements      []any // Polygons, Lines and Texts
}

// A Polygon is a surface of one colour.
type Polygon struct {
	Color  color.Color
	Points []Point
}

// A Line goes through points.
type Line struct {
	LineStyle
	Points []Point
}

// A Text is one line of text.
type Text struct {
	TextStyle
	At     Point
	String string
}

// offset is where the text's baseline begins, along the text and across it, from its place.
func (t Text) offset() (along, across float64) {
	if t.XAlign == Middle {
		along = -t.Width(t.String) / 2
	}
	if t.YAlign == Middle {
		across = -capitals / 2 * t.Size
	}
	return along, across
}

// Frame is the rectangle around the text: from its baseline to the height of a capital.
func (t Text) Frame() Rectangle {
	along, across := t.offset()
	width, height := t.Width(t.String), capitals*t.Size
	if t.Turned {
		return Rectangle{
			t.At.Add(Point{-across - height, along}), t.At.Add(Point{-across, along + width}),
		}
	}
	return Rectangle{
		t.At.Add(Point{along, across}), t.At.Add(Point{along + width, across + height}),
	}
}

// A Canvas is a part of a drawing.
type Canvas struct {
	Rectangle
	drawing *Drawing
}

// Crop is the canvas whose edges are moved, to the right and upwards.
func (c Canvas) Crop(left, right, bottom, top float64) Canvas {
	c.Min, c.Max = c.Min.Add(Point{left, bottom}), c.Max.Add(Point{right, top})
	return c
}

func (c Canvas) add(element any) { c.drawing.Elements = append(c.drawing.Elements, element) }

// FillPolygon draws a surface.
func (c Canvas) FillPolygon(fill color.Color, points []Point) { c.add(Polygon{fill, points}) }

// FillRectangle draws a rectangle.
func (c Canvas) FillRectangle(fill color.Color, r Rectangle) { c.FillPolygon(fill, r.corners()) }

// StrokeLine draws a line through points, or none if style has no color.
func (c Canvas) StrokeLine(style LineStyle, points ...Point) {
	if style.Color == nil {
		return
	}
	if _, _, _, alpha := style.Color.RGBA(); alpha > 0 && len(points) > 1 {
		c.add(Line{style, points})
	}
}

// StrokeOutline draws a line through points and back to the first.
func (c Canvas) StrokeOutline(style LineStyle, points []Point) {
	c.StrokeLine(style, append(points[:len(points):len(points)], points[0])...)
}

// FillText draws a text.
func (c Canvas) FillText(style TextStyle, at Point, text string) { c.add(Text{style, at, text}) }

// DrawMark draws a mark.
func (c Canvas) DrawMark(style MarkStyle, at Point) {
	r := style.Radius
	line := LineStyle{Color: style.Color, Width: 1}
	half := Point{r * math.Sqrt2 / 2, r * math.Sqrt2 / 2}
	square := Rectangle{at.Sub(half), at.Add(half)}.corners()
	switch style.Shape {
	case Disc:
		c.FillPolygon(style.Color, roundPolygon(at, r, 24))
	case Square:
		c.FillPolygon(style.Color, square)
	case Pyramid:
		c.FillPolygon(style.Color, roundPolygon(at, r, 3))
	case Ring:
		c.StrokeOutline(line, roundPolygon(at, r, 24))
	case Box:
		c.StrokeOutline(line, square)
	case Triangle:
		c.StrokeOutline(line, roundPolygon(at, r, 3))
	case Cross:
		c.StrokeLine(line, square[0], square[2])
		c.StrokeLine(line, square[1], square[3])
	case Plus:
		c.StrokeLine(line, at.Sub(Point{X: r}), at.Add(Point{X: r}))
		c.StrokeLine(line, at.Sub(Point{Y: r}), at.Add(Point{Y: r}))
	}
}

// roundPolygon is the regular polygon of n corners in a circle, against the clock from its top.
func roundPolygon(at Point, radius float64, n int) []Point {
	points := make([]Point, n)
	for i := range points {
		sin, cos := math.Sincos(math.Pi/2 + 2*math.Pi*float64(i)/float64(n))
		points[i] = at.Add(Point{radius * cos, radius * sin})
	}
	return points
}
