package families

import (
	"fmt"
	"image/color"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Colours of models and of dominated ones, which colour-blind readers can distinguish (Okabe
// and Ito).
var (
	blue   = color.RGBA{0, 114, 178, 255}
	orange = color.RGBA{213, 94, 0, 255}
)

// drawTo writes a chart of accuracy against the latency of the largest batch, as PNG.
// Dominated models are orange.
func drawTo(f *os.File, list []measuredVariant) error {
	last := len(list[0].Latencies) - 1
	p := plot.New()
	p.Title.Text = "Accuracy against latency (orange: another is faster and no less accurate)"
	p.Title.TextStyle.Font.Size = vg.Points(11)
	p.Title.Padding = vg.Points(6)
	p.X.Label.Text = fmt.Sprintf("median latency of a batch of %d with one thread, ms", sizes[last])
	p.Y.Label.Text = "accuracy"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(ticks)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xdd}, color.Gray{0xdd}
	p.Add(grid)
	for _, m := range list {
		points := plotter.XYs{{X: m.Latencies[last], Y: m.Accuracy}}
		dots, err := plotter.NewScatter(points)
		if err != nil {
			return fmt.Errorf("point of %s: %w", m.Model, err)
		}
		dots.Color, dots.Shape, dots.Radius = blue, draw.CircleGlyph{}, vg.Points(4)
		if m.Dominated != "" {
			dots.Color = orange
		}
		names, err := plotter.NewLabels(plotter.XYLabels{
			XYs: points, Labels: []string{" " + m.Model},
		})
		if err != nil {
			return fmt.Errorf("name of %s: %w", m.Model, err)
		}
		names.Offset = vg.Point{X: vg.Points(4), Y: vg.Points(3)}
		p.Add(dots, names)
	}
	// Room for the names, and for a single point.
	p.X.Min, p.X.Max = p.X.Min/1.3, p.X.Max*2.2
	margin := max(.002, (p.Y.Max-p.Y.Min)*.1)
	p.Y.Min, p.Y.Max = p.Y.Min-margin, p.Y.Max+margin
	canvas := vgimg.PngCanvas{
		Canvas: vgimg.NewWith(vgimg.UseWH(vg.Points(520), vg.Points(320)), vgimg.UseDPI(144),
			vgimg.UseBackgroundColor(color.White)),
	}
	p.Draw(draw.Crop(draw.New(canvas), vg.Points(4), -vg.Points(8), vg.Points(4), -vg.Points(6)))
	_, err := canvas.WriteTo(f)
	return err
}

// ticks marks 1, 2 and 5 times the powers of ten.
func ticks(low, high float64) (marks []plot.Tick) {
	for power := math.Pow(10, math.Floor(math.Log10(low))); power <= high; power *= 10 {
		for _, digit := range []float64{1, 2, 5} {
			if v := digit * power; v >= low && v <= high {
				marks = append(marks, plot.Tick{Value: v, Label: figures(v)})
			}
		}
	}
	return marks
}

// writeChart writes the chart to the file at path.
func writeChart(path string, list []measuredVariant) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := drawTo(f, list); err != nil {
		f.Close()
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return f.Close()
}
