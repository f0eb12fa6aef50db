package picture

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/vector"
)

// pixels are those of a point, so that pictures are sharp on screens and paper.
const pixels = 2

// writePNG writes a drawing as PNG.
func (d *Drawing) writePNG(w io.Writer) error {
	to := image.NewRGBA(image.Rect(0, 0, int(math.Ceil(d.Width*pixels)),
		int(math.Ceil(d.Height*pixels))))
	draw.Draw(to, to.Rect, image.White, image.Point{}, draw.Src)
	var buffer sfnt.Buffer
	for _, element := range d.Elements {
		var outline path
		fill := color.Color(color.Black)
		switch e := element.(type) {
		case Polygon:
			fill = e.Color
			outline.polygon(e.Points)
		case Line:
			fill = e.Color
			outline.stroke(e)
		case Text:
			fill = e.Color
			outline.text(&buffer, e)
		}
		outline.fill(to, fill, d.Height)
	}
	return png.Encode(w, to)
}

// A path is the outline of a surface. All of its parts turn the same way, but for the holes in
// letters: where two lie upon each other, the rasterizer adds them up.
type path []segment

func (o *path) polygon(points []Point) {
	for i, p := range points {
		*o = append(*o, segment{i == 0, []Point{p}})
	}
}

// stroke adds the outline of a line: a rectangle for each piece, and a disc where two meet.
func (o *path) stroke(line Line) {
	half := line.Width / 2
	for _, points := range cutDashes(line.Points, line.Dashes) {
		for i, q := range points[1:] {
			p := points[i]
			length := math.Hypot(q.X-p.X, q.Y-p.Y)
			if length == 0 {
				continue
			}
			side := Point{(q.Y - p.Y) / length * half, (p.X - q.X) / length * half}
			o.polygon([]Point{p.Add(side), q.Add(side), q.Sub(side), p.Sub(side)})
			if i > 0 {
				o.polygon(roundPolygon(p, half, 12))
			}
		}
	}
}

// cutDashes are the dashes of a line through points.
func cutDashes(points []Point, dashes []float64) (cut [][]Point) {
	period := 0.0
	for _, d := range dashes {
		period += d
	}
	if period <= 0 {
		return [][]Point{points}
	}
	now := points[:1:1]
	i, left := 0, dashes[0]
	for k, q := range points[1:] {
		p := points[k]
		length := math.Hypot(q.X-p.X, q.Y-p.Y)
		for at := 0.0; at < length; {
			step := min(left, length-at)
			at, left = at+step, left-step
			here := Point{p.X + (q.X-p.X)*at/length, p.Y + (q.Y-p.Y)*at/length}
			now = append(now, here)
			for left <= 0 { // lengths of 0 pass
				if i%2 == 0 {
					cut = append(cut, now)
				}
				i++
				now, left = []Point{here}, dashes[i%len(dashes)]
			}
		}
	}
	if i%2 == 0 && len(now) > 1 {
		cut = append(cut, now)
	}
	return cut
}

// text adds the outlines of letters.
func (o *path) text(buffer *sfnt.Buffer, t Text) {
	along, across := t.offset()
	for _, r := range t.String {
		g := readGlyph(buffer, r)
		for _, s := range g.outline {
			placed := segment{moves: s.moves}
			for _, p := range s.points {
				x, y := along+p.X*t.Size, across+p.Y*t.Size
				if t.Turned {
					x, y = -y, x
				}
				placed.points = append(placed.points, t.At.Add(Point{x, y}))
			}
			*o = append(*o, placed)
		}
		along += g.advance * t.Size
	}
}

// fill fills the outline in an image of a drawing of a height.
func (o path) fill(to *image.RGBA, c color.Color, height float64) {
	if len(o) == 0 {
		return
	}
	place := func(p Point) (x, y float64) { return p.X * pixels, (height - p.Y) * pixels }
	left, top, right, bottom := math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	for _, s := range o {
		for _, p := range s.points {
			x, y := place(p)
			left, right = min(left, x), max(right, x)
			top, bottom = min(top, y), max(bottom, y)
		}
	}
	// The rasterizer wants all of the outline to be within it.
	frame := image.Rect(int(math.Floor(left)), int(math.Floor(top)), int(math.Ceil(right))+1,
		int(math.Ceil(bottom))+1)
	seen := frame.Intersect(to.Rect)
	if seen.Empty() {
		return
	}
	z := vector.NewRasterizer(frame.Dx(), frame.Dy())
	at := func(p Point) (x, y float32) {
		px, py := place(p)
		return float32(px - float64(frame.Min.X)), float32(py - float64(frame.Min.Y))
	}
	for _, s := range o {
		switch x, y := at(s.points[len(s.points)-1]); {
		case s.moves:
			z.ClosePath()
			z.MoveTo(x, y)
		case len(s.points) == 1:
			z.LineTo(x, y)
		case len(s.points) == 2:
			bx, by := at(s.points[0])
			z.QuadTo(bx, by, x, y)
		default:
			bx, by := at(s.points[0])
			cx, cy := at(s.points[1])
			z.CubeTo(bx, by, cx, cy, x, y)
		}
	}
	z.ClosePath()
	mask := image.NewAlpha(image.Rectangle{Max: frame.Size()})
	z.DrawOp = draw.Src
	z.Draw(mask, mask.Rect, image.Opaque, image.Point{})
	draw.DrawMask(to, seen, image.NewUniform(c), image.Point{}, mask, seen.Min.Sub(frame.Min),
		draw.Over)
}
