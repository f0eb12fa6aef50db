//go:build fleet

package fleet

import (
	"context"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// testLoading sends 300 queries/s to NCF, in turns while nothing else happens and while the same
// agent unloads and loads RM2 again and again. Wanted: no query fails, and loading makes the
// p99 at most 1.5 times as long (medians of ten turns each). The short form has one turn
// each, with small models.
func (r *run) testLoading(ctx context.Context) error {
	_, c, d, err := r.startReal(ctx, pick(r, zoo.Default, zoo.Small), "ncf", "rm2")
	if err != nil {
		return err
	}
	begin := time.Now()
	var alone, beside []float64
	loads := 0
	var loading time.Duration
	for pair := range pick(r, 10, 1) {
		// The same queries both times.
		window := harness.Load{
			Rate: 300, Duration: pick(r, 3*time.Second, 2*time.Second), Seed: r.seed + uint64(pair),
		}
		quiet, err := d.Run(ctx, window)
		if err != nil {
			return err
		}
		if err := d.Start(ctx, window); err != nil {
			return err
		}
		n, took, err := loadUntil(ctx, c, "rm2", d)
		if err != nil {
			return err
		}
		busy, err := d.Wait()
		if err != nil {
			return err
		}
		loads, loading = loads+n, loading+took
		alone, beside = append(alone, quiet.Models[0].LatencyMS.P99), append(beside,
			busy.Models[0].LatencyMS.P99)
		r.printLine("p99 of ncf: %.3f ms alone, %.3f ms while rm2 was loaded %d times", alone[pair],
			beside[pair], n)
	}
	ratio := harness.Median(beside) / harness.Median(alone)
	r.checkWanted(loads > 0, "rm2 was loaded %d times, warm-up included in %.0f ms each", loads,
		loading.Seconds()*1e3/float64(max(1, loads)))
	r.wantQuiet(ratio <= 1.5,
		"medians of %.3f ms alone and %.3f ms during loads: %.2f times, want at most 1.5",
		harness.Median(alone),
		harness.Median(beside), ratio)
	return r.endLoad(d, begin)
}

// loadUntil unloads and loads the model again and again until the driver's load ends. It returns
// how often, and how long all loads together took.
func loadUntil(ctx context.Context, c *client.Client, model string, d *harness.Driver) (loads int,
	took time.Duration, err error) {
	for !d.Ended() {
		if err := c.UnloadModel(ctx, model); err != nil {
			return loads, took, err
		}
		start := time.Now()
		if err := c.LoadModel(ctx, model); err != nil {
			return loads, took, err
		}
		took += time.Since(start)
		loads++
	}
	return loads, took, nil
}
