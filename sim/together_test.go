package sim

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/colocate"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/placement"
)

func faultsOf(tb testing.TB, texts ...string) (all []fleet.Fault) {
	tb.Helper()
	for _, text := range texts {
		f, err := fleet.ParseFault(text)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// TestFamiliesWithFaults: a fleet whose instances hold some variants only loses its leader and
// another agent, and answers all queries, few of them late, about as accurately as without faults.
func TestFamiliesWithFaults(t *testing.T) {
	cfg := families(t)
	divided(cfg)
	cfg.RTT = time.Millisecond
	limit, err := FluidLimit(cfg.Models, cfg.Pool)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Rate = .5 * limit.Rate
	want := mustRun(t, cfg)
	cfg.Faults = faultsOf(t, "kill-leader@2s", "kill-r5n.large-1@4s", "drain-r5n.large-2@5s+1s")
	got := mustRun(t, cfg)
	if got.Served != cfg.Queries || got.Late-want.Late > cfg.Queries/100 ||
		got.EffectiveAccuracy < want.EffectiveAccuracy-.01 {
		t.Errorf("%+v, accuracy %.4f, without faults %+v, %.4f", got.OutcomeCounts,
			got.EffectiveAccuracy,
			want.OutcomeCounts, want.EffectiveAccuracy)
	}
	if got.Faults[0].NextLeader == "" {
		t.Errorf("nobody leads after the leader was killed: %+v", got.Faults[0])
	}
	for _, m := range got.Models {
		if m.Variants[0].Served == 0 || m.Variants[1].Served == 0 {
			t.Errorf("%s: only one variant answers: %+v", m.Model, m.Variants)
		}
	}
}

// TestPlacementWithFaults: when the leader is killed, the next one goes on to place models, from
// the placements that it knows.
func TestPlacementWithFaults(t *testing.T) {
	cfg := placed(t)
	base := .1 * must(FluidLimit(cfg.Models, cfg.Pool)).Rate
	cfg.Rate, cfg.Queries, cfg.RTT = base, 1<<30, time.Millisecond
	// The second half of the run asks for three times as much.
	cfg.Stream = varying(160*time.Second, base, func(_ int, at time.Duration) float64 {
		if at >= 100*time.Second {
			return base
		}
		return base / 3
	})
	cfg.Faults = faultsOf(t, "kill-leader@70s", "drain-g4dn.xlarge-1@80s+5s")
	res := mustRun(t, cfg)
	type window struct{ accuracy, late float64 }
	at := map[float64]window{}
	for _, w := range res.Placement.Windows {
		at[w.StartS] = window{w.Accuracy, float64(w.Late) / float64(max(1, w.Ended))}
	}
	if at[60].accuracy-at[140].accuracy < .01 {
		t.Errorf("accuracy is %.4f, and %.4f under load, which a leader that places lowers",
			at[60].accuracy, at[140].accuracy)
	}
	for _, s := range []float64{50, 90, 130, 140} {
		if at[s].late > .02 {
			t.Errorf("at %v s: %.4f of the queries are late", s, at[s].late)
		}
	}
	if n := res.NeverServed + res.Rejected; n > 0 {
		t.Errorf("%d queries have no answer", n)
	}
	if !slices.ContainsFunc(res.Placement.Events, func(e placement.Told) bool {
		return e.Kind == "placement" && e.AtS > 100
	}) {
		t.Errorf("no placement after the leader was killed: %+v", res.Placement.Events)
	}
}

// TestSharingWithFaults: two runs on one machine slow each other down; what a killed agent ran
// there slows nothing down any more.
func TestSharingWithFaults(t *testing.T) {
	const ms = time.Millisecond
	x := fixedModel(t, "x", 100*ms, time.Second)
	var log bytes.Buffer
	cfg := &Config{
		Models: []Model{x}, Pool: Pool{{"a", 2}}, Rate: 1, Queries: 3, RTT: ms, Log: &log,
		Sharing: &colocate.Sharing{
			Machines: [][]colocate.Lanes{{{Type: "a", Count: 2}}},
			Slowdown: colocate.Pairs([]string{"x"}, profiles.Slowdowns{"x": {"x": 3}}),
		},
		Stream: streamed([]workload.Query{
			{At: 1000 * ms, Model: "x", BatchSize: 1}, {At: 1001 * ms, Model: "x", BatchSize: 1},
			{At: 3000 * ms, Model: "x", BatchSize: 1},
		}),
		Faults: faultsOf(t, "kill-a-1@1050ms"),
	}
	mustRun(t, cfg)
	took := map[string]time.Duration{}
	for _, r := range readLog(t, &log) {
		took[r.query] = r.latency
	}
	slowed := 0
	for _, query := range []string{"0", "1"} {
		if took[query] > 120*ms {
			slowed++
		}
	}
	if slowed == 0 || took["2"] > 110*ms || len(took) != 3 {
		t.Errorf("took %v, want one of the first two slowed down and the last one not", took)
	}
}
