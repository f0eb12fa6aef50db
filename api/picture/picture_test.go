package picture_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/api/picture/picturetest"
)

// panel has n curves that all run to the right upper corner of their range.
func panel(n int) *picture.Panel {
	p := picture.New("title", "x", "y")
	for i := range n {
		v := &picture.Curve{
			Values:    []picture.Point{{X: 0, Y: 1}, {X: 1, Y: 2}, {X: 2, Y: 1000}},
			LineStyle: picture.LineOf(i), Mark: picture.MarkOf(i),
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
		for _, logarithmic := range []bool{false, true} {
			p := panel(n)
			if n == 0 {
				p.X.Max, p.Y.Min, p.Y.Max = 2, 1, 1000
			}
			p.Y.Log = logarithmic
			d := picturetest.Check(t, picture.Page(1, p))
			entries := d.Find("a series")
			if len(entries) != n {
				t.Fatalf("%d entries of %d series", len(entries), n)
			}
			frame := d.Strokes[len(d.Strokes)-1].Points
			top, right := frame[2].Y, frame[2].X
			highest := 0.
			for _, s := range d.Strokes {
				if !s.Grey && s.Points[len(s.Points)-1].X-s.Points[0].X > 100 {
					highest = max(highest, s.Points[len(s.Points)-1].Y)
				}
			}
			for _, e := range entries {
				if e.Box.Max.Y > top || e.Box.Max.X > right || e.Box.Min.Y < highest {
					t.Errorf(
						"%d series, logarithms %v: %q is at %v; the frame ends at (%v, %v), the data at %v",
						n, logarithmic, e.String, e.Box, right, top, highest)
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
	p.Title = strings.Repeat("a title without end ", 12)
	picturetest.Check(t, picture.Page(1, p, panel(1)))
}

// TestSeriesAreToldApart: no two of the first eight look alike, in black and white neither.
func TestSeriesAreToldApart(t *testing.T) {
	colours, shapes := map[string]int{}, map[string]int{}
	for i := range 8 {
		line, mark := picture.LineOf(i), picture.MarkOf(i)
		if other, seen := colours[fmt.Sprint(line.Color)]; seen {
			t.Errorf("series %d and %d have the colour %v", i, other, line.Color)
		}
		shape := fmt.Sprintf("%v %v", line.Dashes, mark.Shape)
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
				At: func(c picture.Canvas, p *picture.Panel) float64 {
					_, y := p.Transforms(c)
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

func TestLogTicks(t *testing.T) {
	var got []string
	for _, tick := range picture.LogTicks(0.04, 30_000) {
		if tick.Label != "" {
			got = append(got, tick.Label)
		}
	}
	want := "0.05 0.1 0.2 0.5 1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("labels %s, want %s", text, want)
	}
}

// drawer draws what a test wants.
type drawer func(c picture.Canvas)

func (d drawer) Plot(c picture.Canvas, _ *picture.Panel) { d(c) }

// TestPixels: a PNG has surfaces, lines, the gaps of dashes, and texts where the drawing has them.
func TestPixels(t *testing.T) {
	p := picture.New("", "", "")
	red := color.RGBA{0xff, 0, 0, 0xff}
	var at picture.Point
	p.Add(drawer(func(c picture.Canvas) {
		at = c.Min.Add(picture.Point{X: 100, Y: 100})
		c.FillRectangle(red, picture.Rectangle{Min: at, Max: at.Add(picture.Point{X: 10, Y: 10})})
		style := picture.LineStyle{Color: red, Width: 4, Dashes: []float64{20, 20}}
		c.StrokeLine(style, at.Add(picture.Point{Y: 40}), at.Add(picture.Point{X: 30, Y: 40}),
			at.Add(picture.Point{X: 100, Y: 40}))
		text := picture.TextOf(20)
		text.Color = red
		c.FillText(text, at.Add(picture.Point{Y: -50}), "MMM")
		text.Turned = true
		c.FillText(text, at.Add(picture.Point{X: -20}), "MMM")
	}))
	var b bytes.Buffer
	if err := picture.Page(1, p).Write(&b, "png"); err != nil {
		t.Fatal(err)
	}
	drawn, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	// coloured is the share of a rectangle, from a corner beside at, that is not white.
	coloured := func(x, y, width, height float64) float64 {
		seen, all := 0, 0
		for i := range int(2 * width) {
			for j := range int(2 * height) {
				_, green, _, _ := drawn.At(int(2*(at.X+x))+i, drawn.Bounds().Dy()-1-int(2*(at.Y+y))-j).
					RGBA()
				all++
				if green < 0x8000 {
					seen++
				}
			}
		}
		return float64(seen) / float64(all)
	}
	for _, one := range []struct {
		what                string
		x, y, width, height float64
		low, high           float64
	}{
		{"the rectangle", 1, 1, 8, 8, 1, 1},
		{"right of the rectangle", 11, 1, 8, 8, 0, 0},
		{"the first dash", 1, 39, 18, 2, 1, 1},
		{"above it", 1, 43, 18, 5, 0, 0},
		{"the first gap", 21, 39, 18, 2, 0, 0},
		{"the dash after it, across no corner", 41, 39, 18, 2, 1, 1},
		{"the text", 2, -49, 45, 12, .3, .7},
		{"below the text", 2, -56, 45, 4, 0, 0},
		{"the turned text", -33, 2, 12, 45, .3, .7},
		{"right of the turned text", -18, 12, 10, 30, 0, 0},
	} {
		got := coloured(one.x, one.y, one.width, one.height)
		if got < one.low || got > one.high {
			t.Errorf("%s: %.2f is coloured, want %.2f to %.2f", one.what, got, one.low, one.high)
		}
	}
}

// TestSVG: texts of any characters make well-formed XML.
func TestSVG(t *testing.T) {
	p := panel(1)
	p.Title = `a<b & "c"`
	var b bytes.Buffer
	if err := picture.Page(1, p).Write(&b, "svg"); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for decoder := xml.NewDecoder(&b); ; {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts = append(texts, string(text))
		}
	}
	if !slices.Contains(texts, p.Title) {
		t.Errorf("texts %q, want %q among them", texts, p.Title)
	}
}
