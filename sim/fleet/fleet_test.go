package fleet

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// A queryEnd is the outcome of a query.
type queryEnd struct {
	Outcome
	lane      int
	start, at time.Duration
}

// A trial is a fleet with one model, whose queries have one item.
type trial struct {
	*Fleet
	t        *testing.T
	cfg      Config
	outcomes map[uint64]queryEnd
}

// newTrial returns a fleet of lanes of the given types, on which runs take so long, as is known.
// change, if not nil, changes its settings.
func newTrial(t *testing.T, types []names.LaneType, takes map[names.LaneType]time.Duration,
	change func(c *Config)) *trial {
	t.Helper()
	x := &trial{t: t, outcomes: map[uint64]queryEnd{}}
	x.cfg = Config{
		Models: []Model{{
			Model: match.Model{Name: "m", QoSTarget: 100 * ms, LargestBatchSize: 1}, Share: 0.99,
		}},
		Policy: match.DefaultPolicy, Seed: 1, RTT: ms, Gateways: 2, GossipDelay: time.Second,
		Probes: inquire.DefaultProbes,
		Service: func(lane int, _ *ArrivingQuery) time.Duration {
			return takes[types[lane]]
		},
		Waits: func(uint64, bool) {}, Split: func(uint64) {},
		Finish: func(sequence uint64, o Outcome, by Answer) {
			if was, twice := x.outcomes[sequence]; twice {
				t.Errorf("query %d has the outcome %d, and had %v", sequence, o, was)
			}
			x.outcomes[sequence] = queryEnd{o, by.Lane, by.Start, x.Now()}
		},
	}
	for _, typ := range types {
		table, err := match.NewTable(flat(takes[typ]), 1)
		if err != nil {
			t.Fatal(err)
		}
		x.cfg.Lanes = append(x.cfg.Lanes, LaneConfig{
			Type: typ, Known: []match.Latencies{flat(takes[typ])},
			Predicted: []*match.LatencyTable{table},
		})
	}
	if change != nil {
		change(&x.cfg)
	}
	var err error
	if x.Fleet, err = New(&x.cfg); err != nil {
		t.Fatal(err)
	}
	return x
}

// every lets a query arrive each gap until end, then all else happen, and checks that all are
// served.
func (x *trial) every(gap, end time.Duration) {
	x.t.Helper()
	n := uint64(0)
	for at := time.Duration(0); at < end; at += gap {
		x.until(at)
		n++
		x.Arrive(ArrivingQuery{Sequence: n, BatchSize: 1, Arrival: at})
	}
	x.until(Never)
	for i := uint64(1); i <= n; i++ {
		if o, ok := x.outcomes[i]; !ok || o.Outcome != Served {
			x.t.Errorf("query %d: got the outcome %v (%v), want it to be served", i, o.Outcome, ok)
		}
	}
}

func (x *trial) until(at time.Duration) {
	x.t.Helper()
	if err := x.Until(x.t.Context(), at); err != nil {
		x.t.Fatal(err)
	}
}

var boxes = []names.LaneType{"box", "box", "box"}

// TestDrain: an agent that drains loses no query, gets none while it is away, and some when it has
// come back, also if it leads.
func TestDrain(t *testing.T) {
	for target, lane := range map[names.AgentName]int{"box-1": 0, "box-3": 2} { // box-3 leads
		x := newTrial(t, boxes, map[names.LaneType]time.Duration{"box": 20 * ms},
			func(c *Config) {
				c.Faults = []Fault{{
					Verb: drain, Target: target, At: time.Second, Duration: 2 * time.Second,
				}}
			})
		x.every(8*ms, 6*time.Second)
		before, away, after := 0, 0, 0
		for _, o := range x.outcomes {
			switch {
			case o.lane != lane:
			case o.start < time.Second:
				before++
			case o.start > 1100*ms && o.start < 3*time.Second:
				away++
			case o.start > 4*time.Second:
				after++
			}
		}
		if before == 0 || away != 0 || after == 0 {
			t.Errorf("%s got %d queries before it drained, %d while it was away, and %d when it "+
				"had come back; want some, none, some", target, before, away, after)
		}
	}
}

// TestLearns: leaders learn what runs take and tell the lanes; the next leader starts from that.
func TestLearns(t *testing.T) {
	takes := map[names.LaneType]time.Duration{"box": 10 * ms, "slow": 30 * ms}
	const kill = 3 * time.Second
	x := newTrial(t, []names.LaneType{"box", "box", "slow", "slow"}, takes, func(c *Config) {
		c.Learns = true
		c.Faults = []Fault{{Verb: "kill", Target: TheLeader, At: kill}}
		for i := range c.Lanes { // as if nothing were known
			table, err := match.NewTable(flat(90*ms), 1)
			if err != nil {
				t.Fatal(err)
			}
			c.Lanes[i].Known[0], c.Lanes[i].Predicted[0] = flat(90*ms), table
		}
	})
	check := func(when string) {
		t.Helper()
		for _, a := range x.agents {
			want := takes[a.lane.Type]
			if got := a.lane.Predicted[0].Mean(1); !a.dead && (got < want*9/10 ||
				got > want*11/10) {
				t.Errorf("%s, %s expects %v, want about %v", when, a.member.Name, got, want)
			}
		}
		last := x.terms[len(x.terms)-1]
		latencies := last.state.Latencies()
		if len(latencies) != 2 || last.state.Prices() == nil {
			t.Errorf("%s, the leader knows %d latencies and the prices %v, want 2, and some", when,
				len(latencies), last.state.Prices())
		}
		for _, l := range latencies {
			want := takes[l.Type]
			if got := l.Table.Mean(1); got < want*9/10 || got > want*11/10 {
				t.Errorf("%s, the leader expects %v on %s, want about %v", when, got, l.Type, want)
			}
		}
	}
	x.do(kill, func() { check("before the leader ends") })
	x.do(kill+500*ms, func() { check("after the next leader has begun") })
	x.every(10*ms, 5*time.Second)
	if len(x.terms) != 2 {
		t.Errorf("%d terms, want 2", len(x.terms))
	}
}

// TestPrior: a leader that learns starts from what is known before.
func TestPrior(t *testing.T) {
	takes := map[names.LaneType]time.Duration{"box": 10 * ms}
	x := newTrial(t, boxes, takes, func(c *Config) {
		c.Learns = true
		c.Prior = func(int, names.LaneType) *profiles.Table {
			const ever = 20 * ms
			table, err := profiles.NewTable(profiles.Key{Model: "m"}, profiles.Measured, "",
				[]profiles.Knot{{BatchSize: 1, Mean: ever, P50: ever, P90: ever, P99: ever}})
			if err != nil {
				t.Fatal(err)
			}
			return table
		}
	})
	x.until(0)
	if n := len(x.terms[0].state.Latencies()); n != 1 {
		t.Errorf("before any query the leader knows %d latencies, want one", n)
	}
	for _, l := range x.terms[0].state.Latencies() {
		if got := l.Table.Mean(1); got != 20*ms {
			t.Errorf("before any query the leader expects %v, want 20 ms", got)
		}
	}
	x.every(10*ms, time.Second)
}

// TestLeaderless: where no agent may lead, gateways serve queries for good.
func TestLeaderless(t *testing.T) {
	x := newTrial(t, boxes, map[names.LaneType]time.Duration{"box": 20 * ms}, func(c *Config) {
		c.Candidates = -1
	})
	x.every(10*ms, time.Second)
	if len(x.terms) != 0 || x.Probes() == 0 {
		t.Errorf("%d terms and %d probes, want no term, and some probes", len(x.terms), x.Probes())
	}
}

// TestCandidates: only the first agents lead.
func TestCandidates(t *testing.T) {
	x := newTrial(t, boxes, map[names.LaneType]time.Duration{"box": 20 * ms}, func(c *Config) {
		c.Candidates = 2
		c.Faults = []Fault{{Verb: kill, Target: TheLeader, At: 500 * ms}}
	})
	x.every(20*ms, 2*time.Second)
	var led []names.AgentName
	for _, term := range x.terms {
		led = append(led, term.agent.member.Name)
	}
	if len(led) != 2 || led[0] != "box-2" || led[1] != "box-1" {
		t.Errorf("%v led, want box-2 and then box-1", led)
	}
}

// TestCancel: a client's cancelling ends its query, and frees the lane for the next; what it tries
// again is a query like others.
func TestCancel(t *testing.T) {
	x := newTrial(t, []names.LaneType{"box"},
		map[names.LaneType]time.Duration{"box": 50 * ms}, nil)
	x.until(0)
	x.Arrive(ArrivingQuery{Sequence: 1, BatchSize: 1, CancelAfter: 20 * ms})
	x.Arrive(ArrivingQuery{Sequence: 2, BatchSize: 1, CancelAfter: 200 * ms})
	x.ArriveLater(ArrivingQuery{Sequence: 3, BatchSize: 1, Arrival: time.Second})
	x.until(Never)
	first, second, third := x.outcomes[1], x.outcomes[2], x.outcomes[3]
	if first.Outcome != Cancelled || first.at != 20*ms {
		t.Errorf("query 1: got the outcome %d at %v, want it cancelled at 20ms", first.Outcome,
			first.at)
	}
	if second.Outcome != Served || second.at > 80*ms {
		t.Errorf("query 2: got the outcome %d at %v, want it served within 80 ms, as the lane "+
			"stopped query 1", second.Outcome, second.at)
	}
	if third.Outcome != Served || third.start < time.Second {
		t.Errorf("query 3: got the outcome %d, started at %v, want it served after 1 s",
			third.Outcome, third.start)
	}
}

// TestWays: a lane that is farther away gets queries later, and answers later; jitter lengthens a
// query's way.
func TestWays(t *testing.T) {
	takes := map[names.LaneType]time.Duration{"box": 20 * ms}
	alone := []names.LaneType{"box"}
	// to the leader, back, to the lane and back, and the run
	const usual = 2*ms + 20*ms
	x := newTrial(t, alone, takes, nil)
	x.every(100*ms, time.Second)
	far := newTrial(t, alone, takes, func(c *Config) { c.Lanes[0].Distance = 3 * ms })
	far.every(100*ms, time.Second)
	jitters := newTrial(t, alone, takes, func(c *Config) { c.Jitter = 2 * ms })
	jitters.every(100*ms, 10*time.Second)
	sum, n := time.Duration(0), 0
	for i, o := range x.outcomes {
		arrival := time.Duration(i-1) * 100 * ms
		if took := o.at - arrival; took != usual {
			t.Errorf("query %d took %v, want %v", i, took, usual)
		}
		// The leader is on the machine that is far, so all four ways are longer.
		if took := far.outcomes[i].at - arrival; took != usual+4*3*ms {
			t.Errorf("far away query %d took %v, want %v", i, took, usual+4*3*ms)
		}
	}
	for i, o := range jitters.outcomes {
		sum, n = sum+o.at-time.Duration(i-1)*100*ms-usual, n+1
	}
	if mean := sum / time.Duration(n); mean < ms || mean > 3*ms {
		t.Errorf("with jitter queries took %v longer in the mean, want about 2 ms", mean)
	}
}

// TestDeadlines: the deadline of a model goes before that of the fleet.
func TestDeadlines(t *testing.T) {
	x := newTrial(t, []names.LaneType{"box"},
		map[names.LaneType]time.Duration{"box": 500 * ms}, func(c *Config) {
			c.Deadline = 10 * time.Second
			c.Models = append(c.Models, c.Models[0])
			c.Models[1].Name, c.Models[1].Deadline = "n", 50*ms
			l := &c.Lanes[0]
			l.Known, l.Predicted = append(l.Known, l.Known[0]), append(l.Predicted, l.Predicted[0])
		})
	x.until(0)
	x.Arrive(ArrivingQuery{Sequence: 1, Model: 0, BatchSize: 1})
	x.Arrive(ArrivingQuery{Sequence: 2, Model: 1, BatchSize: 1})
	x.until(Never)
	if o := x.outcomes[1]; o.Outcome != Served {
		t.Errorf("the query with 10 s has the outcome %d, want it served", o.Outcome)
	}
	if o := x.outcomes[2]; o.Outcome == Served || o.at > 51*ms {
		t.Errorf("the query with 50 ms has the outcome %d at %v, want it dropped by then",
			o.Outcome, o.at)
	}
}

// TestModelOfReturningAgent: a model that only an agent holds which a new leader does not know at
// first is served when that agent is back.
func TestModelOfReturningAgent(t *testing.T) {
	x := newTrial(t, boxes, map[names.LaneType]time.Duration{"box": 20 * ms}, func(c *Config) {
		other := c.Models[0]
		other.Name = "other"
		c.Models = append(c.Models, other)
		for i := range c.Lanes {
			l := &c.Lanes[i]
			l.Known, l.Predicted = append(l.Known, nil), append(l.Predicted, nil)
			if i == 2 {
				l.Known[1], l.Predicted[1] = l.Known[0], l.Predicted[0]
			}
		}
		c.Candidates = 2
		c.Faults = []Fault{
			{Verb: cut, Target: "box-3", At: 0, Duration: 8 * time.Second},
			{Verb: kill, Target: TheLeader, At: 7 * time.Second},
		}
	})
	x.until(9 * time.Second)
	x.Arrive(ArrivingQuery{Sequence: 1, Model: 1, BatchSize: 1, Arrival: 9 * time.Second})
	x.until(Never)
	if o := x.outcomes[1]; o.Outcome != Served || o.at > 10*time.Second {
		t.Errorf("got the outcome %d at %v, want it served at once", o.Outcome, o.at)
	}
}

// TestHolds: agents of one type that hold different models each serve their own.
func TestHolds(t *testing.T) {
	x := newTrial(t, boxes, map[names.LaneType]time.Duration{"box": 20 * ms}, func(c *Config) {
		c.Models = append(c.Models, c.Models[0])
		c.Models[1].Name = "n"
		for i := range c.Lanes {
			l := &c.Lanes[i]
			if i == 0 {
				l.Known, l.Predicted = append(l.Known, nil), append(l.Predicted, nil)
			} else {
				l.Known = []match.Latencies{nil, l.Known[0]}
				l.Predicted = []*match.LatencyTable{nil, l.Predicted[0]}
			}
		}
	})
	x.until(0)
	x.Arrive(ArrivingQuery{Sequence: 1, Model: 0, BatchSize: 1})
	x.Arrive(ArrivingQuery{Sequence: 2, Model: 1, BatchSize: 1})
	x.until(Never)
	first, second := x.outcomes[1], x.outcomes[2]
	if first.Outcome != Served || first.lane != 0 || second.Outcome != Served || second.lane == 0 {
		t.Errorf("got outcome %d on lane %d for the one model and %d on lane %d for the other, "+
			"want both served, and only the one on lane 0", first.Outcome, first.lane,
			second.Outcome, second.lane)
	}
}
