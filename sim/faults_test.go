package sim

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/latency"
)

// even returns a fleet of four equal agents with a query each 10 ms, which takes 20 ms where it
// runs and should be answered within 60.
func even(t testing.TB, faults ...string) *Config {
	t.Helper()
	sizes, err := workload.ParseBatchSizes("fixed:10")
	if err != nil {
		t.Fatal(err)
	}
	c := &Config{
		Models: []Model{{
			Name: "m", QoSTarget: 60 * time.Millisecond, BatchSizes: sizes,
			Latencies: map[string]match.Latencies{
				"box": latency.Fixed{Base: 20 * time.Millisecond},
			},
		}},
		Pool: Pool{{"box", 4}}, Rate: 100, Queries: 1000, Seed: 1, RTT: time.Millisecond,
		Gateways:    2,
		GossipDelay: time.Second, Stream: StreamOf("constant"),
	}
	for _, text := range faults {
		f, err := fleet.ParseFault(text)
		if err != nil {
			t.Fatal(err)
		}
		c.Faults = append(c.Faults, f)
	}
	return c
}

// TestFaults has one thing go wrong at a time. A query runs at 5 s on box-4, which leads, and the
// one that arrives then goes to box-1.
func TestFaults(t *testing.T) {
	for _, test := range []struct {
		fault         string
		agent, next   names.AgentName
		after, atMost float64 // ms without a leader
		// late before and after: those at the lane when it stood still arrived before.
		lateBefore, late, lateMost int
	}{
		// What its lane ran starts again elsewhere, in time.
		{fault: "kill-leader@5s", agent: "box-4", next: "box-3", after: 1, atMost: 20},
		{fault: "kill-box-1@5s", agent: "box-1"},
		// What it ran is given up when it is overdue.
		{fault: "freeze-leader@5s+3s", agent: "box-4", next: "box-3", after: 800, atMost: 1100,
			lateBefore: 1},
		{fault: "freeze-box-1@5s+3s", agent: "box-1", late: 1, lateMost: 1},
		{fault: "freeze-box-1@5s+20ms", agent: "box-1"},
		{fault: "cut-leader@5s+2s", agent: "box-4", next: "box-3", after: 800, atMost: 1100,
			lateBefore: 1},
		{fault: "cut-leader@5s+9s", agent: "box-4", next: "box-3", after: 800, atMost: 1100,
			lateBefore: 1},
		{fault: "cut-box-1@5s+2s", agent: "box-1", late: 1, lateMost: 1},
		{fault: "cut-box-1@5s+9s", agent: "box-1", late: 1, lateMost: 1},
		// What it runs it answers, and it steps down.
		{fault: "deafen-leader@5s+2s", agent: "box-4", next: "box-3", after: 800, atMost: 1100},
		{fault: "deafen-leader@5s+9s", agent: "box-4", next: "box-3", after: 800, atMost: 1100},
		{fault: "deafen-box-1@5s+9s", agent: "box-1", late: 1, lateMost: 1},
		{fault: "mute-leader@5s+9s", agent: "box-4", next: "box-3", after: 800, atMost: 1100,
			lateBefore: 1},
		{fault: "mute-box-1@5s+9s", agent: "box-1", late: 1, lateMost: 1},
		{fault: "freeze-leader@5s+300ms", agent: "box-4", lateBefore: 1}, // it goes on to lead
		// Four ways of 20 ms and the lane's 20 ms are more than 60.
		{fault: "delay@5s+1s:20ms", late: 98, lateMost: 104},
		{fault: "delay@5s+1s:1ms"},
	} {
		t.Run(test.fault, func(t *testing.T) {
			res := mustRun(t, even(t, test.fault))
			r := res.Faults[0]
			if res.Served != 1000 ||
				r.Before != (fleet.Count{Queries: 200, Late: test.lateBefore}) ||
				r.After.Queries != 200 || r.After.Lost != 0 {
				t.Errorf("%+v, %+v, want all 1000 served, and of the 200 before %d late",
					res.OutcomeCounts, r, test.lateBefore)
			}
			if r.After.Late < test.late || r.After.Late > test.lateMost ||
				res.Late != r.Before.Late+r.After.Late {
				t.Errorf("%d late after, %d of all, want %d to %d, and no others", r.After.Late,
					res.Late, test.late, test.lateMost)
			}
			// What runs twice was on the lane that was lost.
			if again := res.Types[0].Queries - 1000; again < 0 || again > 1 {
				t.Errorf("%d queries were started again, want one at most", again)
			}
			if r.Agent != test.agent || r.NextLeader != test.next ||
				r.WithoutLeaderMS < test.after || r.WithoutLeaderMS > test.atMost {
				t.Errorf("it hit %q, %q led after %v ms; want %q, %q after %v to %v", r.Agent,
					r.NextLeader, r.WithoutLeaderMS, test.agent, test.next, test.after, test.atMost)
			}
		})
	}
}

// TestFaultsCount: a run with a fault that harms nothing counts the queries that it splits as one
// without faults does, and probes while nobody leads.
func TestFaultsCount(t *testing.T) {
	var recording bytes.Buffer
	counts := func(faults ...string) *Result {
		cfg := even(t, faults...)
		recording.Reset()
		cfg.Record, cfg.Models = &recording, reference(t, "dien").Models
		cfg.Models[0].Splits, cfg.Policy = true, "horizon"
		cfg.Pool, cfg.Rate, cfg.Queries = Pool{{"g4dn.xlarge", 2}, {"r5n.large", 9}}, 600, 5000
		cfg.Stream = StreamOf("poisson")
		res := mustRun(t, cfg)
		if recorded := strings.Count(recording.String(), "\nsplit "); res.Split != recorded {
			t.Errorf("%v: %d queries are split, and %d by the recording", faults, res.Split,
				recorded)
		}
		return res
	}
	without := counts()
	with := counts("delay-r5n.large-1@1s+1ms:1us")
	led := counts("freeze-leader@2s+2s")
	if without.Split < 50 || 2*with.Split < without.Split || with.Split > 2*without.Split {
		t.Errorf("%d queries are split with a fault, and %d without", with.Split, without.Split)
	}
	if without.Probes != 0 || with.Probes != 0 || !(led.Probes > 0) {
		t.Errorf("gateways probe %v, with a fault %v, and while nobody leads %v times a query; "+
			"want 0, 0, and more", without.Probes, with.Probes, led.Probes)
	}
}

// TestNobodyLeft: queries that nobody is left to serve are never served, or dropped if they have a
// deadline, and the run ends.
func TestNobodyLeft(t *testing.T) {
	for _, deadline := range []time.Duration{0, time.Second} {
		cfg := even(t, "kill-leader@2s", "kill-leader@3s", "kill-leader@4s", "kill-leader@5.01s")
		cfg.Deadline, cfg.Rate, cfg.Queries = deadline, 40, 400
		res := mustRun(t, cfg)
		// The last one also takes the query that arrived at 5 s, and runs.
		want := OutcomeCounts{Queries: 400, Late: 201, Served: 199, NeverServed: 201}
		if deadline > 0 {
			want.NeverServed, want.Dropped = 0, 201
		}
		if res.OutcomeCounts != want {
			t.Errorf("deadline %v: %+v, want %+v", deadline, res.OutcomeCounts, want)
		}
		if r := res.Faults[3]; r.Agent != "box-1" || r.NextLeader != "" || r.After.Late != 80 {
			t.Errorf("deadline %v: the last one: %+v", deadline, r)
		}
	}
}

// randomFaults is a configuration in which anything may go wrong until 4 s, and then nothing.
func randomFaults(t testing.TB, seed uint64) *Config {
	r := rand.New(rand.NewPCG(seed, 0))
	cfg := even(t)
	cfg.Seed, cfg.Queries, cfg.Gateways = seed, 800, 1+r.IntN(3)
	cfg.Stream, cfg.LatencyNoise = StreamOf("poisson"), 0.3*r.Float64()
	cfg.Models[0].RejectLate = r.IntN(4) == 0
	if r.IntN(4) == 0 {
		cfg.Deadline = 200 * time.Millisecond
	}
	cfg.RTT = []time.Duration{0, time.Millisecond, 5 * time.Millisecond}[r.IntN(3)]
	killed := 0
	for range 1 + r.IntN(5) {
		f := fleet.Fault{
			At:       time.Duration(r.IntN(4000)) * time.Millisecond,
			Duration: time.Duration(1+r.IntN(2000)) * time.Millisecond,
		}
		f.Target = []names.AgentName{fleet.TheLeader, "box-1", "box-2", "box-3", "box-4"}[r.IntN(5)]
		switch f.Verb = []string{
			"kill", "freeze", "cut", "delay", "deafen", "mute",
		}[r.IntN(6)]; f.Verb {
		case "kill":
			if killed++; killed > 2 {
				continue
			}
			f.Duration = 0
		case "cut", "deafen", "mute":
			// some break connections, and outlast gossip's patience
			f.Duration *= time.Duration(1 + 3*r.IntN(2))
		case "delay":
			f.Amount = time.Duration(1+r.IntN(60)) * time.Millisecond
			if r.IntN(2) == 0 {
				f.Target = ""
			}
		}
		cfg.Faults = append(cfg.Faults, f)
	}
	return cfg
}

// TestFaultSchedules: whatever goes wrong each query has one outcome, none is left without, and the
// same seed gives the same result.
func TestFaultSchedules(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 10
	}
	served, all := 0, 0
	for seed := range uint64(n) {
		once := func() (*Result, string) {
			cfg := randomFaults(t, seed)
			var log bytes.Buffer
			cfg.Log = &log
			res, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatalf("seed %d, %v: %v", seed, cfg.Faults, err)
			}
			return res, log.String()
		}
		res, log := once()
		rows, err := csv.NewReader(strings.NewReader(log)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, row := range rows[1:] {
			seen[row[0]]++
		}
		sum := res.Served + res.Rejected + res.Dropped + res.NeverServed + res.Lost
		if res.Queries != 800 || sum != 800 || len(seen) != 800 || len(rows) != 801 ||
			res.NeverServed+res.Lost > 0 {
			t.Errorf("seed %d, %v: %+v, %d queries in %d lines of the log", seed,
				randomFaults(t, seed).Faults, res.OutcomeCounts, len(seen), len(rows)-1)
		}
		served, all = served+res.Served, all+res.Queries
		again, logAgain := once()
		one, _ := json.Marshal(res)
		two, _ := json.Marshal(again)
		if !bytes.Equal(one, two) || log != logAgain {
			t.Errorf("seed %d: %s, again %s", seed, one, two)
		}
	}
	if served < all*9/10 {
		t.Errorf("%d of %d queries served", served, all)
	}
}

// TestFaultsRecorded: the terms of a run replay.
func TestFaultsRecorded(t *testing.T) {
	cfg := even(t, "freeze-leader@2s+2s", "kill-leader@6s")
	var recording bytes.Buffer
	cfg.Record = &recording
	res := mustRun(t, cfg)
	replayed, err := leader.Replay(&recording)
	if err != nil || replayed.Events != res.Steps ||
		strings.Count(recording.String(), leader.Header) != 0 {
		t.Errorf("%+v, %v, want %d events", replayed, err, res.Steps)
	}
}

// TestWithoutFaults: a fleet in which nothing goes wrong yet serves as a leader's run does, with
// queries merged, too.
func TestWithoutFaults(t *testing.T) {
	far, err := fleet.ParseFault("delay@1h+1s:1ms")
	if err != nil {
		t.Fatal(err)
	}
	one, err := workload.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		model string
		pool  Pool
		merge names.MergePolicy
		rate  float64
		sizes *workload.BatchSizes
	}{
		{"dien", Pool{{"g4dn.xlarge", 2}, {"r5n.large", 9}}, names.MergeNone, 500, nil},
		{"dien", Pool{{"g4dn.xlarge", 2}, {"r5n.large", 9}}, names.MergeDeadline, 500, nil},
		// 2 x what they serve alone
		{"wnd", Pool{{"r5n.large", 2}}, names.MergeDeadline, 4 * 380, one},
	} {
		cfg := reference(t, x.model)
		cfg.Pool, cfg.Policy, cfg.Merge = x.pool, "horizon", x.merge
		cfg.Rate, cfg.RTT, cfg.Queries, cfg.Gateways = x.rate, 2*time.Millisecond, 5000, 1
		if x.sizes != nil {
			cfg.Models[0].BatchSizes = x.sizes
		}
		alone := mustRun(t, cfg)
		cfg.Faults = []fleet.Fault{far}
		whole := mustRun(t, cfg)
		t.Logf("%s, %s: %d late in the whole fleet, %d under its leader alone", x.model, x.merge,
			whole.Late, alone.Late)
		// In a fleet the leader is a lane's agent, and so hears of that one sooner.
		if max(whole.Late-alone.Late, alone.Late-whole.Late) > max(10, alone.Late/10) {
			t.Errorf("%s, %s: %d late in the whole fleet, %d under its leader alone", x.model,
				x.merge,
				whole.Late, alone.Late)
		}
	}
}

func TestFaultsThatCannotBe(t *testing.T) {
	for _, test := range []struct {
		fault  string
		change func(*Config)
		want   string
	}{
		{"kill-box-5@1s", nil,
			`got the target "box-5", want "leader" or one of the agents box-1 to box-4`},
		{"kill-box-0@1s", nil, `"box-0"`},
		{"kill-box-01@1s", nil, `"box-01"`},
		{"kill-box@1s", nil, `"box"`},
		{"kill-leader@1s", func(c *Config) { c.Policy = Priced },
			"policy priced cannot be simulated with faults"},
		{"kill-leader@1s", func(c *Config) { c.Policy, c.Others = others[0].Name, others },
			"policy round-robin cannot"},
		{"kill-leader@1s", func(c *Config) { c.Pool[0].Count = 1001 },
			"1001 instances, want 1..1000 with faults"},
		{"kill-leader@1s", func(c *Config) { c.Probes = -1 }, "number of lanes asked is -1"},
	} {
		cfg := even(t, test.fault)
		if test.change != nil {
			test.change(cfg)
		}
		if _, err := Run(t.Context(), cfg); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", test.fault, err, test.want)
		}
	}
	if _, err := FindThroughput(t.Context(), even(t, "kill-leader@1s"), 1, nil); err == nil ||
		!strings.Contains(err.Error(), "faults") {
		t.Errorf("throughput with faults: %v", err)
	}
}

// TestFaultsMerge: a fleet in which an agent is killed serves small queries at a rate that it can
// serve only if they run together, and each query once.
func TestFaultsMerge(t *testing.T) {
	late := map[names.MergePolicy]int{}
	for _, policy := range []names.MergePolicy{names.MergeNone, names.MergeDeadline} {
		c := even(t, "kill-box-1@2s")
		c.Models[0].Latencies = map[string]match.Latencies{
			"box": latency.Fixed{Base: 20 * time.Millisecond, PerItem: 10 * time.Microsecond},
		}
		c.Policy, c.Merge, c.Rate, c.Queries = "horizon", policy, 300, 1500
		res := mustRun(t, c)
		if res.Served != c.Queries {
			t.Errorf("%s: %d of %d queries are served", policy, res.Served, c.Queries)
		}
		late[policy] = res.Late
	}
	if late[names.MergeDeadline] > 30 || late[names.MergeNone] < 300 {
		t.Errorf("of 1500 queries %v are late, want few only if they run together", late)
	}
}
