package bench

import (
	"bytes"
	"context"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/sim/workload"
)

// TestPlot draws a picture, and an empty one. Set MUSTER_TEST_PLOT to a path to
// look at the first.
func TestPlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(1, 0))
		s := &fakeServer{properties: fakeProperties(),
			answer: func(ctx context.Context, req *oip.Request) error {
				mu.Lock()
				ms := math.Exp(0.5 * r.NormFloat64())
				mu.Unlock()
				if req.Model == "wnd" {
					ms *= 3.5
				}
				return sleep(ctx, time.Duration(ms*1e6))
			}}
		report := mustRun(t, s, Config{
			Queries:  stream(t, "poisson", 400, workloadSizes(t), "ncf", "wnd"),
			Duration: 20 * time.Second,
			Workload: Workload{Arrivals: "poisson", BatchSizes: "trace"},
		}, "ncf", "wnd")
		var picture bytes.Buffer
		if err := report.WritePlot(&picture); err != nil {
			t.Fatal(err)
		}
		if path := os.Getenv("MUSTER_TEST_PLOT"); path != "" {
			if err := os.WriteFile(path, picture.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		image, err := png.Decode(&picture)
		if err != nil {
			t.Fatal(err)
		}
		// Both curves are there.
		seen := map[[3]uint8]int{}
		for y := range image.Bounds().Dy() {
			for x := range image.Bounds().Dx() {
				r, g, b, _ := image.At(x, y).RGBA()
				seen[[3]uint8{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8)}]++
			}
		}
		for _, c := range colours[:2] {
			if n := seen[[3]uint8{c.R, c.G, c.B}]; n < 1000 {
				t.Errorf("colour %v has %d pixels, want a curve", c, n)
			}
		}

		s.answer = func(context.Context, *oip.Request) error { return nil }
		models := []*Model{fakeModel(t, s, "m")}
		s.answer = func(ctx context.Context, _ *oip.Request) error { return sleep(ctx, time.Hour) }
		failed, err := run(t.Context(), s, models,
			Config{Queries: steady(t, 10, "m"), Duration: time.Second}, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if err := failed.WritePlot(&picture); err != nil {
			t.Errorf("nothing answered: %v", err)
		}
	})
}

func workloadSizes(t *testing.T) *workload.BatchSizes {
	t.Helper()
	d, err := workload.Trace().AtMost(64)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestLogTicks(t *testing.T) {
	var got []string
	for _, tick := range (logTicks{}).Ticks(0.04, 30_000) {
		if tick.Label != "" {
			got = append(got, tick.Label)
		}
	}
	want := "0.05 0.1 0.2 0.5 1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("labels %s, want %s", text, want)
	}
}
