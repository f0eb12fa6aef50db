package sim

import (
	"bytes"
	"encoding/csv"
	"iter"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/latency"
)

// fixedModel takes the given time on type a, whatever the batch size.
func fixedModel(t *testing.T, name string, execution, target time.Duration) Model {
	one, err := workload.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	latencies := map[string]match.Latencies{"a": latency.Fixed{Base: execution}}
	return Model{Name: name, QoSTarget: target, BatchSizes: one, Latencies: latencies}
}

// streamed is a stream of the queries given.
func streamed(queries []workload.Query) func(*Config) (iter.Seq[workload.Query], error) {
	return func(*Config) (iter.Seq[workload.Query], error) { return slices.Values(queries), nil }
}

// A row of the log of queries.
type row struct {
	query, model, outcome string
	onTime                bool
	latency               time.Duration
	lane                  string
}

func readLog(t *testing.T, log *bytes.Buffer) []row {
	t.Helper()
	rows, err := csv.NewReader(log).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []row
	for _, r := range rows[1:] {
		ms, err := strconv.ParseFloat(r[6], 64)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, row{r[0], r[1], r[4], r[5] == "true", time.Duration(ms * 1e6), r[8]})
	}
	return out
}

// TestLaneOrder: a simulated lane takes queries in production's order.
func TestLaneOrder(t *testing.T) {
	const ms = time.Millisecond
	var log bytes.Buffer
	cfg := &Config{
		Models: []Model{
			fixedModel(t, "patient", 10*ms, 500*ms),
			fixedModel(t, "urgent", 10*ms, 52*ms),
			fixedModel(t, "long", 40*ms, 80*ms),
			fixedModel(t, "hopeless", 10*ms, 15*ms),
		},
		Pool: Pool{{"a", 1}}, Policy: Priced, Probes: -1, Rate: 1, Queries: 6, Log: &log,
	}
	var queries []workload.Query
	for i, name := range []string{"patient", "patient", "hopeless", "urgent", "long"} {
		queries = append(queries, workload.Query{
			At: time.Duration(i) * ms, Model: name, BatchSize: 1,
		})
	}
	cfg.Stream = streamed(queries)
	mustRun(t, cfg)
	var order []string
	for _, r := range readLog(t, &log) {
		order = append(order, r.query+" "+r.model)
	}
	// Due at 501, 17 (late), 55, 84; latest starts are 491, 7, 45, 44.
	if want := []string{
		"0 patient", "3 urgent", "4 long", "1 patient", "2 hopeless",
	}; !slices.Equal(order, want) {
		t.Errorf("served %q, want %q", order, want)
	}
}

// small are the batch sizes 1 to 4.
func small() *workload.BatchSizes {
	sizes, err := workload.Weighted("small", []workload.Probability{
		{BatchSize: 1, P: 0.25}, {BatchSize: 2, P: 0.25}, {BatchSize: 3, P: 0.25}, {
			BatchSize: 4, P: 0.25,
		},
	})
	if err != nil {
		panic(err)
	}
	return sizes
}

// TestDeadlineHolds: nobody waits beyond the deadline, neither at the leader nor at a lane.
func TestDeadlineHolds(t *testing.T) {
	for _, policy := range []string{"horizon", Priced} {
		var log bytes.Buffer
		cfg := reference(t, "rm2")
		cfg.Policy, cfg.Rate, cfg.RTT, cfg.Log = policy, 500, 10*time.Millisecond, &log
		cfg.Deadline = 2 * cfg.Models[0].QoSTarget
		cfg.LatencyNoise = 0.3
		cfg.Probes, cfg.GossipDelay = -1, time.Second
		res := mustRun(t, cfg)
		for _, r := range readLog(t, &log) {
			if r.latency > cfg.Deadline+time.Microsecond { // the matcher counts in ms
				t.Fatalf("%s: query %s is %s after %v, want at most %v", policy, r.query, r.outcome,
					r.latency, cfg.Deadline)
			}
		}
		if res.Served == 0 || res.Dropped == 0 {
			t.Errorf("%s: %+v, want some served and some dropped", policy, res.OutcomeCounts)
		}
	}
}

// TestLateRejectedAtLane: a lane rejects what became late while it waited there, if the
// model is set so.
func TestLateRejectedAtLane(t *testing.T) {
	cfg := &Config{
		Models: []Model{fixedModel(t, "m", 10*time.Millisecond, 55*time.Millisecond)},
		Pool:   Pool{{"a", 3}}, Policy: Priced, Probes: -1, GossipDelay: time.Second, Rate: 250,
		Queries: 2000,
	}
	late := mustRun(t, cfg)
	cfg.Models[0].RejectLate = true
	res := mustRun(t, cfg)
	if late.Late == 0 || late.Served != 2000 || res.Rejected == 0 || res.Served != 2000-res.Late {
		t.Errorf("%+v; rejecting late ones %+v, want all of those served in time",
			late.OutcomeCounts,
			res.OutcomeCounts)
	}
}
