//go:build fleet

package fleet

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// The loads of a model in sharing, by what one lane serves: as much as it serves at all, which is
// more than it serves in time, but no more, for until lanes have moved an overload is refused as
// any other; and hardly anything.
const muchLoad, littleLoad = 1, .15

// testSharing has an agent whose lanes RM2 and WND share, and whose leader, itself, may move them.
// Then the models' loads swap, again and again. Wanted: within 2 s most lanes are the loaded
// model's, and no query fails. The three lanes of one core each share what processors there are.
// The short form emulates the agent and swaps once.
func (r *run) testSharing(ctx context.Context) error {
	f := &harness.Fleet{
		Muster: r.muster, Dir: r.dir, Models: []string{"rm2", "wnd"},
		Args: []string{"--layout", "rm2:2x1+wnd:1x1", "--model-control", "leader"},
	}
	r.atEnd = append(r.atEnd, f.Stop)
	instanceType := ""
	if r.short {
		f.Args, instanceType = append(f.Args, harness.Emulated()...), "g4dn.xlarge"
		if err := f.GenerateSmall(ctx); err != nil {
			return err
		}
	} else {
		for _, model := range f.Models {
			if _, err := zoo.Generate(ctx, filepath.Join(r.dir, "models"), model,
				zoo.Options{}); err != nil {
				return err
			}
		}
	}
	if _, err := f.Add(ctx, instanceType); err != nil {
		return err
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	serves := map[string]float64{} // queries/s of a lane
	for _, model := range f.Models {
		m, err := r.runBench(ctx, f, model, 5, pick(r, 5*time.Second, 600*time.Millisecond),
			r.patientFlags()...)
		if err != nil {
			return err
		}
		serves[model] = 1e3 / m.LatencyMS.P50
		r.printLine("  %s: %.1f ms, so a lane serves %.0f queries/s", model, m.LatencyMS.P50,
			serves[model])
	}
	for turn := range pick(r, 6, 1) {
		loaded := f.Models[(turn+1)%2] // first the one that has fewer lanes
		if err := r.swap(ctx, f, loaded, serves); err != nil {
			return err
		}
	}
	return nil
}

// swap loads one of the models, and hardly the other, and watches the lanes.
func (r *run) swap(ctx context.Context, f *harness.Fleet, loaded string,
	serves map[string]float64) error {
	duration := pick(r, 10*time.Second, 4*time.Second)
	var loads sync.WaitGroup
	reports, errs := make([]bench.ModelReport, 2), make([]error, 2)
	begun := time.Now()
	for i, model := range f.Models {
		rate := littleLoad * serves[model]
		if model == loaded {
			rate = muchLoad * serves[model]
		}
		loads.Go(func() {
			reports[i], errs[i] = r.runBench(ctx, f, model, max(rate, 1), duration,
				r.patientFlags()...)
		})
	}
	moved := time.Duration(0)
	for moved == 0 && time.Since(begun) < duration {
		lanes, err := r.lanesOf(ctx, f, loaded)
		if err != nil {
			return err
		}
		if lanes == 2 {
			moved = time.Since(begun)
		}
		if err := harness.Settle(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	loads.Wait()
	failed, all := int64(0), int64(0)
	for i, m := range reports {
		if errs[i] != nil {
			return errs[i]
		}
		failed, all = failed+m.Failed, all+m.Queries
		if r.short { // on a busy machine a query may be late or refused, and nothing is wrong
			failed -= harness.Refusals(m)
		}
		r.printLine("  %s: %.0f queries/s, %.1f %% late or failed, p99 %.0f ms of %.0f", m.Model,
			m.OfferedQPS, 100*(1-m.QoSSatisfaction), m.LatencyMS.P99, m.QoSTargetMS)
		for _, why := range m.Failures {
			r.printLine("    %d failed: %s", why.Count, why.Reason)
		}
	}
	r.checkWanted(failed == 0, "%s is loaded: %d of %d queries failed, want none", loaded, failed,
		all)
	// On a busy machine a lane seems slower than it is, so that the load is less than it should be.
	r.wantQuiet(moved > 0 && moved <= 2*time.Second,
		"%s has 2 of the 3 lanes after %.1f s (0: never), want 2 s at most", loaded,
		moved.Seconds())
	return nil
}

// patientFlags is how a short run has muster bench wait for answers.
func (r *run) patientFlags() []string {
	return pick(r, nil, []string{"--timeout", harness.Patience.String()})
}

// lanesOf is how many lanes the agent has for a model.
func (r *run) lanesOf(ctx context.Context, f *harness.Fleet, model string) (int, error) {
	view, err := f.View(ctx, f.Nodes[0])
	if err != nil {
		return 0, err
	}
	for _, m := range view.GetMembers() {
		if part := m.PartOf(model); part != nil {
			return int(part.GetLanes()), nil
		}
	}
	return 0, fmt.Errorf("no agent has lanes for %s: %v", model, membersOf(view))
}

func membersOf(view *control.View) (all []string) {
	for _, m := range view.GetMembers() {
		all = append(all, m.GetName())
	}
	return all
}
