package sim

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
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

// streamed is a stream of the queries given. After each has arrived then is called, if not nil.
func streamed(
	queries []workload.Query, then func(arrived int),
) func(*Config) (iter.Seq[workload.Query], error) {
	return func(*Config) (iter.Seq[workload.Query], error) {
		return func(yield func(workload.Query) bool) {
			for i, q := range queries {
				if !yield(q) {
					return
				}
				if then != nil {
					then(i + 1)
				}
			}
		}, nil
	}
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
	cfg.Stream = streamed(queries, nil)
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

// TestOfferedAgain: a query that is offered again goes on where it is until there is another lane
// for it; then it is cut off.
func TestOfferedAgain(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		lanes int
		rtt   time.Duration
		want  []row // the first query runs on lane 0 when that is taken for lost, at 15 ms
	}{
		{3, 0, []row{
			{"0", "m", "served", true, 35 * ms, "2"}, {"1", "m", "served", true, 20 * ms, "1"},
		}},
		{2, 0, []row{
			{"0", "m", "served", true, 20 * ms, "0"}, {"1", "m", "served", true, 20 * ms, "1"},
		}},
		{3, 4 * ms, []row{
			{"0", "m", "served", true, 41 * ms, "1"}, {"1", "m", "served", true, 28 * ms, "2"},
		}},
	} {
		t.Run(fmt.Sprintf("%d lanes, %v", tt.lanes, tt.rtt), func(t *testing.T) {
			var log bytes.Buffer
			cfg := &Config{
				Models: []Model{fixedModel(t, "m", 20*ms, 100*ms)},
				Pool:   Pool{{"a", tt.lanes}}, Policy: "fcfs", Rate: 1, Queries: 3, RTT: tt.rtt,
				Log: &log,
			}
			at := func(d time.Duration) workload.Query {
				return workload.Query{
					At: d, Model: "m", BatchSize: 1,
				}
			}
			var r *run
			cfg.Stream = streamed([]workload.Query{at(0), at(15 * ms), at(200 * ms)},
				func(arrived int) {
					if arrived == 2 {
						lose(r, 0)
					}
				})
			var err error
			if r, err = newRun(cfg); err != nil {
				t.Fatal(err)
			}
			if err := r.simulate(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := readLog(t, &log)
			slices.SortFunc(got, func(a, b row) int { return strings.Compare(a.query, b.query) })
			if len(got) != 3 || !slices.Equal(got[:2], tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
			// What was cut off at lane 0 counts as far as it went, and so does no other.
			busy := 60 * ms
			switch {
			case tt.rtt > 0:
				busy += 13 * ms // from 6 to 19 ms
			case tt.lanes == 3:
				busy += 15 * ms
			}
			for id := range r.lanes {
				busy -= r.lanes[id].busy
			}
			if busy != 0 {
				t.Errorf("lanes were busy for %v less than they should be", busy)
			}
			idle(t, r)
		})
	}
}

// lose has the leader take a lane for lost, which goes on with what it has.
func lose(r *run, id int) {
	r.term.step(&leader.Event{Kind: leader.LinkBroken, Agent: r.term.members[id].Name, Gone: true})
}

// idle fails if anything is left in a simulated fleet that has served all.
func idle(t *testing.T, r *run) {
	t.Helper()
	if r.first != r.next || r.waiting != 0 {
		t.Errorf("queries %d to %d are left, %d wait", r.first, r.next, r.waiting)
	}
	for id := range r.lanes {
		if l := &r.lanes[id]; l.running != nil || l.queue.Len() > 0 || len(l.promised) > 0 {
			t.Errorf("lane %d runs %+v, %d wait, %d are promised a place", id, l.running,
				l.queue.Len(), len(l.promised))
		}
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

// TestLanesLost: whenever lanes are taken for lost and are there again, and whatever
// limits queries, each of them has one outcome, and lanes and leader agree in the end
// that nothing is left.
func TestLanesLost(t *testing.T) {
	for _, policy := range []string{"clockwork-earliest", "fcfs", "horizon", "kairos"} {
		for _, way := range []struct {
			name   string
			change func(*Config)
		}{
			{"plain", func(*Config) {}},
			{"network", func(c *Config) { c.RTT = 10 * time.Millisecond }},
			{"deadline",
				func(c *Config) { c.RTT, c.Deadline = 10*time.Millisecond, 400*time.Millisecond }},
			{"reject late",
				func(c *Config) { c.RTT, c.Models[0].RejectLate = 10*time.Millisecond, true }},
			{"noise",
				func(c *Config) {
					c.RTT, c.LatencyNoise, c.PredictionNoise = 10*time.Millisecond, 0.3, 0.3
				}},
			{"merged",
				func(c *Config) {
					c.RTT, c.Deadline = 10*time.Millisecond, time.Second
					c.Merge, c.Models[0].BatchSizes, c.Rate = names.MergeDeadline, small(), 3000
				}},
		} {
			t.Run(policy+"/"+way.name, func(t *testing.T) {
				cfg := reference(t, "rm2")
				cfg.Policy, cfg.Rate, cfg.Queries = policy, 130, 500
				way.change(cfg)
				var log bytes.Buffer
				cfg.Log = &log
				var queries []workload.Query
				stream, err := cfg.stream()
				if err != nil {
					t.Fatal(err)
				}
				for q := range stream {
					if queries = append(queries, q); len(queries) == cfg.Queries {
						break
					}
				}
				random := rand.New(rand.NewPCG(1, 2))
				var r *run
				cfg.Stream = streamed(queries, func(int) {
					if id := random.IntN(2 * len(r.lanes)); id < len(r.lanes) && r.err == nil &&
						r.lanes[id].running != nil {
						lose(r, id)
						r.term.step(&leader.Event{
							Kind: leader.Described, Member: r.term.members[id],
							Free: []time.Duration{r.remaining(&r.lanes[id])},
						})
					}
				})
				if r, err = newRun(cfg); err != nil {
					t.Fatal(err)
				}
				if err := r.simulate(t.Context()); err != nil {
					t.Fatal(err)
				}
				seen, again := map[string]bool{}, 0
				for _, row := range readLog(t, &log) {
					if seen[row.query] {
						t.Errorf("query %s has two outcomes", row.query)
					}
					seen[row.query] = true
				}
				for id := range r.lanes {
					again += r.lanes[id].served
				}
				res := r.result()
				if len(seen) != cfg.Queries || res.NeverServed > 0 {
					t.Errorf("%d of %d queries have an outcome: %+v", len(seen), cfg.Queries,
						res.Counts)
				}
				if again <= res.Served {
					t.Errorf("lanes have started %d queries, %d are served: none was cut off",
						again, res.Served)
				}
				idle(t, r)
				sizes := r.term.state.Sizes()
				if sizes["waiting"]+sizes["reserved"]+sizes["queries"] > 0 {
					t.Errorf("the leader is left with %v", sizes)
				}
			})
		}
	}
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
			t.Errorf("%s: %+v, want some served and some dropped", policy, res.Counts)
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
		t.Errorf("%+v; rejecting late ones %+v, want all of those served in time", late.Counts,
			res.Counts)
	}
}
