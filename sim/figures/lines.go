package figures

import (
	"fmt"
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// A lineChart has a line for each series, over 1, 2, 3, ...
type lineChart struct {
	title, xLabel, yLabel string
	series                []series // errors are not drawn
	line                  float64  // a dashed line across at this value; 0: none
}

// draw writes the chart as PNG.
func (c *lineChart) draw(w io.Writer) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.xLabel, c.yLabel
	p.Title.Padding = vg.Points(6)
	p.Title.TextStyle.Font.Size = vg.Points(11)
	p.Y.Min = 0
	p.Y.Tick.Marker, p.X.Tick.Marker = plot.TickerFunc(roundTicks), plot.TickerFunc(roundTicks)
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color = color.Gray{0xdd}
	p.Add(grid)
	top := c.line
	for i, s := range c.series {
		points := make(plotter.XYs, len(s.values))
		for j, v := range s.values {
			points[j] = plotter.XY{X: float64(j + 1), Y: v}
			top = max(top, v)
			p.X.Max = max(p.X.Max, float64(j+1))
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("line of %s: %w", s.name, err)
		}
		line.Color, line.Width = palette[1+i%(len(palette)-1)], vg.Points(1.5)
		dots.Color, dots.Shape, dots.Radius = line.Color, draw.CircleGlyph{}, vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(s.name, line, dots)
	}
	if c.line > 0 {
		f := plotter.NewFunction(func(float64) float64 { return c.line })
		f.Dashes, f.Width = []vg.Length{vg.Points(4), vg.Points(3)}, vg.Points(1)
		p.Add(f)
	}
	// Room for the legend.
	height := vg.Points(280) + vg.Points(14)*vg.Length(len(c.series))
	p.Y.Max = top * 1.05 * float64(height/vg.Points(280))
	p.X.Min, p.X.Max = 0, p.X.Max+1
	canvas := vgimg.PngCanvas{
		Canvas: vgimg.NewWith(vgimg.UseWH(vg.Points(520), height), vgimg.UseDPI(144),
			vgimg.UseBackgroundColor(color.White)),
	}
	p.Draw(draw.Crop(draw.New(canvas), vg.Points(4), -vg.Points(8), vg.Points(4), -vg.Points(6)))
	_, err := canvas.WriteTo(w)
	return err
}
