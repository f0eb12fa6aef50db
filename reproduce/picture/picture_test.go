package picture_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/muster-serve/muster/reproduce/picture"
	"github.com/muster-serve/muster/reproduce/picture/picturetest"
)

// panel has n curves that all run to the right upper corner of their range.
func panel(n int) *picture.Panel {
	p := picture.New("title", "x", "y")
	for i := range n {
		v := &picture.Curve{
			XYs:       plotter.XYs{{X: 0, Y: 1}, {X: 1, Y: 2}, {X: 2, Y: 1000}},
			LineStyle: picture.Line(i), Mark: picture.Mark(i),
		}
		p.Add(v)
		p.Legend(fmt.Sprintf("a series of a rather long name, number %d", i), v)
	}
	return p
}

// TestLegendIsOffTheData: whatever the scale and the number of series, the legend is within the
// frame, and no curve runs through it.
func TestLegendIsOffTheData(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 9} {
		for _, scale := range []plot.Normalizer{plot.LinearScale{}, plot.LogScale{}} {
			p := panel(n)
			if n == 0 {
				p.X.Max, p.Y.Min, p.Y.Max = 2, 1, 1000
			}
			p.Y.Scale = scale
			if _, ok := scale.(plot.LogScale); ok {
				p.Y.Tick.Marker = plot.LogTicks{}
			}
			d := picturetest.Check(t, picture.Page(1, p))
			entries := d.Find("a series")
			if len(entries) != n {
				t.Fatalf("%d entries of %d series", len(entries), n)
			}
			frame := d.Strokes[len(d.Strokes)-1].Points
			top, right := frame[2].Y, frame[2].X
			highest := vg.Length(0)
			for _, s := range d.Strokes {
				if !s.Grey && s.Points[len(s.Points)-1].X-s.Points[0].X > 100 {
					highest = max(highest, s.Points[len(s.Points)-1].Y)
				}
			}
			for _, e := range entries {
				if e.Box.Max.Y > top || e.Box.Max.X > right || e.Box.Min.Y < highest {
					t.Errorf(
						"%d series, %T: %q is at %v; the frame ends at (%v, %v), the data at %v",
						n, scale, e.String, e.Box, right, top, highest)
				}
			}
			if p.Y.Max != 1000 {
				t.Errorf("drawing changes the range to %v", p.Y.Max)
			}
		}
	}
}

// TestLongNames: a picture grows with the names in its legend and with its title.
func TestLongNames(t *testing.T) {
	p := panel(2)
	p.Legend(strings.Repeat("a name without end ", 12), picture.Swatch{Color: picture.Grey})
	picturetest.Check(t, picture.Page(1, p))
	p = panel(2)
	p.Title.Text = strings.Repeat("a title without end ", 12)
	picturetest.Check(t, picture.Page(1, p, panel(1)))
}

// TestSeriesAreToldApart: no two of the first eight look alike, in black and white neither.
func TestSeriesAreToldApart(t *testing.T) {
	colours, shapes := map[string]int{}, map[string]int{}
	for i := range 8 {
		line, mark := picture.Line(i), picture.Mark(i)
		if other, seen := colours[fmt.Sprint(line.Color)]; seen {
			t.Errorf("series %d and %d have the colour %v", i, other, line.Color)
		}
		shape := fmt.Sprintf("%v %T", line.Dashes, mark.Shape)
		if other, seen := shapes[shape]; seen {
			t.Errorf("series %d and %d are both %s", i, other, shape)
		}
		colours[fmt.Sprint(line.Color)], shapes[shape] = i, i
	}
}

// TestNotes: notes stand in the order of their heights and do not touch, wherever they belong.
func TestNotes(t *testing.T) {
	for _, at := range [][]float64{{5}, {5, 5, 5}, {0, 0, 0}, {10, 10, 10}, {0, 10, 5}, {9.9, 10}} {
		p := picture.New("", "x", "y")
		p.X.Max, p.Y.Max = 1, 10
		var notes picture.Notes
		for _, v := range at {
			notes = append(notes, picture.Note{
				Text: fmt.Sprintf("at %v", v), Color: picture.Dark,
				At: func(c draw.Canvas, p *plot.Plot) vg.Length {
					_, y := p.Transforms(&c)
					return y(v)
				},
			})
		}
		p.Margin = notes.Width()
		p.Add(notes)
		d := picturetest.Check(t, picture.Page(1, p))
		found := d.Find("at ")
		if len(found) != len(at) || !slices.IsSortedFunc(found, func(a, b picturetest.Text) int {
			return int(b.Box.Min.Y - a.Box.Min.Y)
		}) {
			t.Errorf("notes at %v stand at %v", at, found)
		}
	}
}

// TestFormats: a file's ending says the format, and what is written has it.
func TestFormats(t *testing.T) {
	for name, begin := range map[string]string{
		"a.png": "\x89PNG\r\n", "dir.x/b.svg": "<?xml", "c.gif": "", "svg": "", "d.SVG": "",
	} {
		format, err := picture.Format(name)
		if (err == nil) != (begin != "") {
			t.Errorf("%s: format %q, %v", name, format, err)
		}
		if err != nil {
			if !strings.Contains(err.Error(), name+" has the ending") ||
				!strings.Contains(err.Error(), "want .png or .svg") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var b bytes.Buffer
		if err := picture.Page(1, panel(2)).Write(&b, format); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(b.String(), begin) ||
			format == "svg" && !strings.Contains(b.String(), "a series of a rather long name") {
			t.Errorf("%s begins with %.20q, want %q", name, &b, begin)
		}
	}
}
