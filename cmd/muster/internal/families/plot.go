package families

import (
	"errors"
	"fmt"
	"os"

	"github.com/muster-serve/muster/api/picture"
)

// chart is of accuracy against the latency of the largest batch. Dominated models are orange.
func chart(list []measuredVariant) *picture.Picture {
	last := len(list[0].Latencies) - 1
	p := picture.New("Accuracy against latency (orange: another is faster and no less accurate)",
		fmt.Sprintf("median latency of a batch of %d with one thread, ms", sizes[last]), "accuracy")
	p.Height, p.X.Log = 320, true
	p.Add(picture.Grid{Vertical: true})
	for _, m := range list {
		dot := picture.MarkStyle{Color: picture.Colour(0), Radius: 4, Shape: picture.Disc}
		if m.Dominated != "" {
			dot.Color = picture.Colour(1)
		}
		at := picture.Point{X: m.Latencies[last], Y: m.Accuracy}
		p.Add(&picture.Curve{Values: []picture.Point{at}, Mark: dot}, &label{at, m.Model})
	}
	// Room for the names, and for a single point.
	p.X.Min, p.X.Max = p.X.Min/1.3, p.X.Max*2.2
	margin := max(.002, (p.Y.Max-p.Y.Min)*.1)
	p.Y.Min, p.Y.Max = p.Y.Min-margin, p.Y.Max+margin
	return picture.Page(1, p)
}

// A label is the name of a model, beside its dot.
type label struct {
	at   picture.Point // of X and Y
	name string
}

// Plot draws it.
func (l *label) Plot(c picture.Canvas, p *picture.Panel) {
	x, y := p.Transforms(c)
	c.FillText(picture.TextOf(9), picture.Point{X: x(l.at.X) + 6, Y: y(l.at.Y) + 3}, l.name)
}

// writeChart writes the chart to the file at path, as PNG.
func writeChart(path string, list []measuredVariant) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(chart(list).Write(f, "png"), f.Close()); err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return nil
}
