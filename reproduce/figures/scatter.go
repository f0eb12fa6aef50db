package figures

import (
	"image/color"
	"math"

	"github.com/muster-serve/muster/api/picture"
)

// A scatterChart has named points of several kinds, and a vertical line.
type scatterChart struct {
	title, xLabel, yLabel string
	kinds                 []pointKind
	line                  float64
	lineName              string
	left, right           float64 // of the x axis
}

type pointKind struct {
	name   string
	points []namedPoint
}

type namedPoint struct {
	name string
	x, y float64
}

// NewPanel makes the chart.
func (c *scatterChart) NewPanel() *picture.Panel {
	p := picture.New(c.title, c.xLabel, c.yLabel)
	p.Height = 340
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = c.left, c.right, 0, 0
	p.Add(picture.Grid{Vertical: true})
	rule := picture.Rule{At: c.line, Vertical: true, Color: picture.Dark}
	p.Add(rule, c)
	for i, kind := range c.kinds {
		for _, one := range kind.points {
			p.Y.Max = max(p.Y.Max, one.y)
		}
		p.Legend(kind.name, picture.Mark{MarkStyle: picture.MarkOf(i)})
	}
	p.Legend(c.lineName, rule)
	return p
}

// Plot draws the points, and their names where nothing else is.
func (c *scatterChart) Plot(canvas picture.Canvas, p *picture.Panel) {
	x, y := p.Transforms(canvas)
	const radius, gap = 4, 3
	var taken []picture.Rectangle
	for i, kind := range c.kinds {
		mark := picture.MarkOf(i)
		mark.Radius = radius
		for _, one := range kind.points {
			at := picture.Point{X: x(one.x), Y: y(one.y)}
			canvas.DrawMark(mark, at)
			taken = append(taken, around(at, radius, radius))
		}
	}
	line := around(picture.Point{X: x(c.line), Y: canvas.Center().Y}, 1, canvas.Size().Y/2)
	taken = append(taken, line)
	style := picture.TextOf(8)
	style.XAlign, style.YAlign = picture.Middle, picture.Middle
	for _, kind := range c.kinds {
		for _, one := range kind.points {
			w, h := style.Width(one.name)/2+1, float64(4)
			dx, dy := radius+gap+w, radius+gap+h
			var best picture.Rectangle
			fewest := math.MaxInt
			for _, d := range []picture.Point{
				{X: -dx}, {X: dx}, {Y: dy}, {Y: -dy}, {X: -dx, Y: dy}, {X: -dx, Y: -dy},
				{X: dx, Y: dy}, {X: dx, Y: -dy}, {X: -2 * dx}, {X: -2 * dx, Y: dy},
			} {
				place := around(picture.Point{X: x(one.x), Y: y(one.y)}.Add(d), w, h)
				if n := crowd(place, taken, canvas.Rectangle); n < fewest {
					best, fewest = place, n
				}
			}
			canvas.FillText(style, picture.Point{
				X: (best.Min.X + best.Max.X) / 2, Y: (best.Min.Y + best.Max.Y) / 2,
			}, one.name)
			taken = append(taken, best)
		}
	}
}

func around(at picture.Point, width, height float64) picture.Rectangle {
	half := picture.Point{X: width, Y: height}
	return picture.Rectangle{Min: at.Sub(half), Max: at.Add(half)}
}

// crowd is how many of the rectangles r touches; being beyond the frame counts as many.
func crowd(r picture.Rectangle, taken []picture.Rectangle, frame picture.Rectangle) (n int) {
	for _, t := range taken {
		if r.Min.X < t.Max.X && t.Min.X < r.Max.X && r.Min.Y < t.Max.Y && t.Min.Y < r.Max.Y {
			n++
		}
	}
	if r.Min.X < frame.Min.X || r.Max.X > frame.Max.X || r.Min.Y < frame.Min.Y ||
		r.Max.Y > frame.Max.Y {
		n += 100
	}
	return n
}

// A gridChart is what a search evaluated of all configurations of two types (RIBBON Fig. 12).
type gridChart struct {
	title, xLabel, yLabel string
	share                 [][]float64 // within QoS, by counts of the two types; NaN: not there
	price                 [][]float64
	target                float64
	evaluated             [][2]int
	optimum               [2]int
}

// NewPanel makes the chart: red misses the target, the lighter the less; green meets it, the darker
// the cheaper; circles are what was evaluated, the star is the optimum.
func (c *gridChart) NewPanel() *picture.Panel {
	p := picture.New(c.title, c.xLabel, c.yLabel)
	p.Width, p.Height, p.Headroom = 290, 360, 0
	p.Y.Ticks = func(low, _ float64) []picture.Tick { // none beside the legend
		return picture.RoundTicks(low, float64(len(c.share[0])))
	}
	p.Add(c)
	p.Legend("misses QoS, light: barely", picture.Swatch{Color: missLight})
	p.Legend("meets it, dark: cheap", picture.Swatch{Color: meetDark})
	p.Legend("evaluated", picture.Mark{MarkStyle: evaluatedMark})
	p.Legend("optimum", starMark{})
	p.X.Min, p.X.Max = -0.5, float64(len(c.share))-0.5
	p.Y.Min, p.Y.Max = -0.5, float64(len(c.share[0]))-0.5
	return p
}

// Plot draws the cells and the marks.
func (c *gridChart) Plot(canvas picture.Canvas, p *picture.Panel) {
	x, y := p.Transforms(canvas)
	least, most := math.Inf(1), 0.0 // prices of what meets the target
	for i := range c.share {
		for j, share := range c.share[i] {
			if share >= c.target {
				least, most = min(least, c.price[i][j]), max(most, c.price[i][j])
			}
		}
	}
	for i := range c.share {
		for j, share := range c.share[i] {
			if math.IsNaN(share) {
				continue
			}
			cell := mix(missDark, missLight,
				share/c.target)
			if share >= c.target {
				cell = mix(meetDark, meetLight,
					(c.price[i][j]-least)/max(most-least, 1e-9))
			}
			l, r, b, t := x(float64(i)-0.48), x(float64(i)+0.48), y(float64(j)-0.46), y(float64(j)+
				0.46)
			canvas.FillPolygon(cell, []picture.Point{
				{X: l, Y: b}, {X: r, Y: b}, {X: r, Y: t}, {X: l, Y: t},
			})
		}
	}
	at := func(c [2]int) picture.Point { return picture.Point{X: x(float64(c[0])), Y: y(float64(c[1]))} }
	for _, e := range c.evaluated {
		canvas.DrawMark(evaluatedMark, at(e))
	}
	drawStar(canvas, at(c.optimum))
}

var (
	missDark, missLight = color.RGBA{0x99, 0x10, 0x10, 0xff}, color.RGBA{0xff, 0xdd, 0xd5, 0xff}
	meetDark, meetLight = color.RGBA{0x00, 0x6e, 0x3c, 0xff}, color.RGBA{0xd5, 0xf0, 0xdd, 0xff}
	evaluatedMark       = picture.MarkStyle{
		Color: picture.Colour(0), Radius: 4, Shape: picture.Disc,
	}
)

// A starMark is the optimum in the legend.
type starMark struct{}

// Thumbnail draws it.
func (starMark) Thumbnail(c picture.Canvas) { drawStar(c, c.Center()) }

func drawStar(c picture.Canvas, at picture.Point) {
	outline := star(at, 7)
	c.FillPolygon(color.RGBA{0xff, 0xc8, 0x00, 0xff}, outline)
	c.StrokeOutline(picture.LineStyle{Color: color.Black, Width: 0.7}, outline)
}

// star is one of five rays.
func star(at picture.Point, radius float64) []picture.Point {
	var points []picture.Point
	for k := range 10 {
		r := radius
		if k%2 == 1 {
			r *= 0.4
		}
		angle := math.Pi/2 + float64(k)*math.Pi/5
		points = append(points, picture.Point{
			X: at.X + r*float64(math.Cos(angle)), Y: at.Y + r*float64(math.Sin(angle)),
		})
	}
	return points
}

// mix goes from a, at 0, to b, at 1.
func mix(a, b color.RGBA, part float64) color.Color {
	part = max(0, min(1, part))
	between := func(a, b uint8) uint8 {
		return uint8(math.Round(float64(a) + part*(float64(b)-float64(a))))
	}
	return color.RGBA{between(a.R, b.R), between(a.G, b.G), between(a.B, b.B), 0xff}
}
