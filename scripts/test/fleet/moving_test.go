//go:build fleet

package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// carried is the share of what the machine can answer that moving asks of it.
const carried = .4

// testMoving has a real agent that serves NCF and one variant of WND. In turns it is left alone for
// a while, and is then told to hold the other variant in place of the one that it holds, while
// queries for NCF and for the family come. Wanted: no query fails, and while it loads the p99
// of NCF is at most 1.5 times as long, in the median of seven turns: it depends on the variant that
// runs beside it, so each load is compared with the seconds before. The short form has one turn,
// with small models.
func (r *run) testMoving(ctx context.Context) error {
	f, c, d, err := r.startMoving(ctx)
	if err != nil {
		return err
	}
	conn, err := f.Dial(ctx, f.Nodes[0])
	if err != nil {
		return err
	}
	ctl := control.NewControlClient(conn)
	rate, err := r.findCarriedRate(ctx, d)
	if err != nil {
		return err
	}
	begin := time.Now()
	var alone, beside, longer []float64
	variants := []string{"wnd-int8", "wnd"}
	for turn := range pick(r, 7, 1) {
		start := time.Now()
		if err := d.Start(ctx,
			harness.Load{Rate: rate, Seed: r.seed + uint64(turn)}); err != nil {
			return err
		}
		if err := r.waitAWhile(ctx, 8*time.Second); err != nil {
			return err
		}
		variant := variants[turn%2]
		layout := "ncf/1," + variant + "/1"
		if _, err := ctl.Place(ctx, &control.PlaceRequest{
			Verb: "pin", Agent: f.Nodes[0].Name, Layout: layout,
		}); err != nil {
			return err
		}
		if err := r.leavesDisk(ctx, c, variant); err != nil {
			return err
		}
		loads := time.Now()
		if err := r.waitForLayout(ctx, ctl, layout); err != nil {
			return err
		}
		held := time.Now()
		if err := d.Stop(); err != nil {
			return err
		}
		before, while := d.Quantile(.99, "ncf", start.Add(time.Second), loads),
			d.Quantile(.99, "ncf", loads, held)
		alone, beside = append(alone, before), append(beside, while)
		longer = append(longer, while/before)
		r.printLine("p99 of ncf: %.3f ms alone, %.3f ms in the %.0f ms until the agent held %s",
			before,
			while, held.Sub(loads).Seconds()*1e3, layout)
		// Until what it held before is unloaded.
		if err := harness.Settle(ctx, pick(r, 8*time.Second, 0)); err != nil {
			return err
		}
	}
	r.wantQuiet(harness.Median(longer) <= 1.5,
		"medians of %.3f ms alone and %.3f ms during loads; in the median turn %.2f times as long, "+
			"want at most 1.5", harness.Median(alone), harness.Median(beside), harness.Median(longer))
	return r.endLoad(d, begin)
}

// findCarriedRate returns the rate of a load that this machine carries, clients included: of one
// query at a time it could answer more.
func (r *run) findCarriedRate(ctx context.Context, d *harness.Driver) (float64, error) {
	begin := time.Now()
	report, err := d.Run(ctx, harness.Load{
		Rate: 20, Duration: pick(r, 10*time.Second, 2*time.Second), Seed: r.seed,
	})
	if err != nil {
		return 0, err
	}
	var sum, answered float64
	for _, m := range report.Models {
		sum += m.LatencyMS.Mean * float64(m.Answered)
		answered += float64(m.Answered)
	}
	if answered == 0 {
		return 0, fmt.Errorf("no query was answered: %v", d.Between(begin, time.Now()))
	}
	rate := carried * 1e3 * answered / sum
	r.printLine("A query alone takes %.3f ms. Load: %.0f queries/s, %v of one after the other",
		sum/answered, rate, carried)
	return rate, nil
}

// leavesDisk waits until the agent loads a model, or has loaded it.
func (r *run) leavesDisk(ctx context.Context, c *client.Client, model string) error {
	for start := time.Now(); time.Since(start) < placedPatience; {
		index, err := c.RepositoryIndex(ctx, false)
		if err != nil {
			return err
		}
		for _, m := range index {
			if m.GetName() == model && m.GetState() != string(models.Unavailable) {
				return nil
			}
		}
		if err := harness.Settle(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("after %v the agent does not load %s", placedPatience, model)
}

// waitForLayout waits until the agent serves a layout.
func (r *run) waitForLayout(ctx context.Context, ctl control.ControlClient, layout string) error {
	var last *control.FleetStatus
	for start := time.Now(); time.Since(start) < placedPatience; {
		s, err := ctl.Status(ctx, &control.StatusRequest{})
		if err != nil {
			return err
		}
		if all := s.GetPlacement().GetAgents(); len(all) == 1 && all[0].GetHolds() == layout {
			return nil
		}
		last = s
		if err := harness.Settle(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("after %v the agent does not hold %s: %v", placedPatience, layout,
		last.GetPlacement())
}

// startMoving starts an agent that holds NCF and WND, and has both variants on disk.
func (r *run) startMoving(ctx context.Context) (*harness.Fleet, *client.Client, *harness.Driver,
	error) {
	f := &harness.Fleet{Muster: r.muster, Dir: r.dir, Args: []string{"--model-control", "leader"}}
	r.atEnd = append(r.atEnd, f.Stop)
	dir := filepath.Join(r.dir, "models")
	for _, model := range []string{"ncf", "wnd"} {
		if _, err := zoo.Generate(ctx, dir, model,
			zoo.Options{Scale: pick(r, zoo.Default, zoo.Small)}); err != nil {
			return nil, nil, nil, err
		}
	}
	if _, err := harness.Output(ctx, "", r.muster, "models", "quantize",
		filepath.Join(dir, "wnd", "1", "model.onnx")); err != nil {
		return nil, nil, nil, err
	}
	state := filepath.Join(r.dir, "moving")
	err := errors.Join(os.MkdirAll(state, 0o755),
		os.WriteFile(filepath.Join(state, "layout"), []byte("ncf/1,wnd/1"), 0o644))
	for model, accuracy := range map[string]float64{"wnd": 1, "wnd-int8": .99} {
		err = errors.Join(err, models.WriteRating(filepath.Join(dir, model, models.ConfigFile),
			models.Rating{Family: "ctr", Accuracy: accuracy}))
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if _, err := f.Add(ctx, "", "--state-dir", state); err != nil {
		return nil, nil, nil, err
	}
	if err := f.WaitComplete(ctx); err != nil {
		return nil, nil, nil, err
	}
	c, err := r.newClient(f.Addresses())
	if err != nil {
		return nil, nil, nil, err
	}
	conn, err := f.Dial(ctx, f.Nodes[0])
	if err != nil {
		return nil, nil, nil, err
	}
	if err := r.waitForLayout(ctx, control.NewControlClient(conn), "ncf/1,wnd/1"); err != nil {
		return nil, nil, nil, err
	}
	d, err := harness.NewDriver(ctx, c, map[string]float64{"ncf": 19, "ctr": 1}, harness.Patience)
	if err != nil {
		return nil, nil, nil, err
	}
	d.Numbers = true
	return f, c, d, nil
}
