package bench

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/picture/picturetest"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/profiles/workload"
)

// TestPlot draws a picture of two models: their curves and targets are there, and told apart. Set
// MUSTER_TEST_PLOT to a folder to look at it and at those of the other tests.
func TestPlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report := mustRun(t, randomServer(1), Config{
			Queries:  stream(t, "poisson", 400, workloadSizes(t), "ncf", "wnd"),
			Duration: 20 * time.Second,
			Workload: Workload{Arrivals: "poisson", BatchSizes: "trace"},
		}, "ncf", "wnd")
		d := drawn(t, report, "plot.png")
		curves := curvesOf(d)
		if len(curves) != 2 || curves[0].Color == curves[1].Color ||
			curves[0].Dashes == curves[1].Dashes {
			t.Errorf("curves %v, want two that differ in colour and dashes", curves)
		}
		for _, words := range []string{
			"ncf: ", "wnd: ", " late", "target 10 ms", "percentile of the queries", "latency, ms",
		} {
			if len(d.Find(words)) != 1 {
				t.Errorf("%q stands %d times in the picture, want once", words, len(d.Find(words)))
			}
		}
		if len(d.Find("failed")) != 1 { // in the axis' title
			t.Errorf("texts %v, want none of failures, for there are none", d.Find("failed"))
		}
	})
}

// TestPlotOfFailures: whether few, most or all queries of a model fail, its curve ends in the band
// of the failed ones, where they begin, and the legend counts them.
func TestPlotOfFailures(t *testing.T) {
	for _, c := range []struct {
		name    string
		failing func(n int) bool
		share   float64
	}{
		{"one", func(n int) bool { return n == 500 }, 0.0005},
		{"some", func(n int) bool { return n%20 == 0 }, 0.05},
		{"most", func(n int) bool { return n%10 != 0 }, 0.9},
		{"all", func(int) bool { return true }, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := randomServer(1)
			var n atomic.Int64
			answer := s.answer
			loaded := false
			s.answer = func(ctx context.Context, req *oip.Request) error {
				if loaded && req.Model == "wnd" {
					if c.failing(int(n.Add(1))) {
						return client.ErrOverloaded
					}
				}
				return answer(ctx, req)
			}
			models := []*TargetModel{fakeModel(t, s, "ncf"), fakeModel(t, s, "wnd")}
			loaded = true
			report, err := run(t.Context(), s, models, Config{
				Queries:  steady(t, 200, "ncf", "wnd"),
				Duration: 20 * time.Second,
				Workload: Workload{Arrivals: "constant", BatchSizes: "fixed:8"},
			}, sleepUntil)
			if err != nil {
				t.Fatal(err)
			}
			m := report.Models[1]
			if got := float64(m.Failed) / float64(m.Queries); math.Abs(got-c.share) > 1e-3 {
				t.Fatalf("%s: %.4f of the queries failed, want %.4f", c.name, got, c.share)
			}
			d := drawn(t, report, c.name+"-failed.png")
			curves := curvesOf(d)
			if len(curves) != 2 {
				t.Fatalf("%s: %d curves, want two", c.name, len(curves))
			}
			band := d.Find("failed")
			if len(band) != 3 || band[0].String != "failed" && band[1].String != "failed" {
				t.Fatalf("%s: texts %v, want the band, the legend and the axis to name failures",
					c.name, band)
			}
			if want := fmt.Sprintf(", %d failed", m.Failed); len(d.Find(want)) != 1 {
				t.Errorf("%s: no %q in the legend", c.name, want)
			}
			middle := d.Find("target 10 ms")[0]
			for _, one := range band {
				if one.String == "failed" {
					middle = one
				}
			}
			// ends has the height at which a curve ends, and how long it is level before.
			ends := func(s picturetest.Stroke) (y, level float64) {
				last := s.Points[len(s.Points)-1]
				return float64(last.Y), float64(last.X - s.Points[len(s.Points)-2].X)
			}
			low, high := float64(middle.Box.Min.Y)-6, float64(middle.Box.Max.Y)+6
			if y, level := ends(curves[1]); y < low || y > high || level < 3 {
				t.Errorf(
					"%s: wnd ends at %.0f, level for %.1f points; want it in the band, %.0f to "+
						"%.0f",
					c.name, y, level, low, high)
			}
			if y, _ := ends(curves[0]); y >= low {
				t.Errorf("%s: ncf ends at %.0f, in the band, but none of its queries failed",
					c.name, y)
			}
		})
	}
}

// randomServer answers after a random time; wnd takes longer.
func randomServer(seed uint64) *fakeServer {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0))
	return &fakeServer{properties: fakeProperties(),
		answer: func(ctx context.Context, req *oip.Request) error {
			mu.Lock()
			ms := math.Exp(0.5 * r.NormFloat64())
			mu.Unlock()
			if req.Model == "wnd" {
				ms *= 3.5
			}
			return sleep(ctx, time.Duration(ms*1e6))
		}}
}

// drawn checks the report's picture, as a drawing and as PNG.
func drawn(t *testing.T, r *Report, name string) *picturetest.Drawing {
	t.Helper()
	var b bytes.Buffer
	if err := r.WritePlot(&b, "png"); err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("MUSTER_TEST_PLOT"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := png.Decode(&b); err != nil {
		t.Fatal(err)
	}
	return picturetest.Check(t, r.drawPicture())
}

// curvesOf are the lines of models, without rules and what the legend shows of them.
func curvesOf(d *picturetest.Drawing) (curves []picturetest.Stroke) {
	for _, s := range d.Strokes {
		if !s.Grey && s.Points[len(s.Points)-1].X-s.Points[0].X > d.Width/2 {
			curves = append(curves, s)
		}
	}
	return curves
}

func workloadSizes(t *testing.T) *workload.BatchSizes {
	t.Helper()
	d, err := workload.Trace().AtMost(64)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
