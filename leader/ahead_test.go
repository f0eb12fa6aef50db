package leader

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestAheadEstimate: the way of a query of the median size is learned, whatever a fifth of
// the queries that meet a stall take, and some that are very large; and a standard deviation
// of the execution besides.
func TestAheadEstimate(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var e aheadEstimate
		for i := range 31 {
			e.observeAnswer(3*time.Millisecond, 0, 0, uint64(1000*i))
		}
		if v, ok := e.estimateAhead(); ok {
			t.Errorf("after 31 answers it says %v, want nothing yet", v)
		}
		e.fixed = 5 * time.Millisecond
		if v, ok := e.estimateAhead(); !ok || v != e.fixed {
			t.Errorf("after a leader that had found 5ms it says %v, %t", v, ok)
		}
		const perByte = 8 // ns
		for range 1280 {
			bytes := uint64(50_000 + rng.IntN(100_000))
			if rng.IntN(10) == 0 {
				bytes *= 50
			}
			receive := time.Duration(perByte * bytes)
			round := receive + 3*time.Millisecond // of which two thirds come before the start
			if rng.IntN(5) == 0 {
				round += time.Duration(rng.IntN(300)) * time.Millisecond
			}
			e.observeAnswer(round, receive,
				time.Duration(rng.NormFloat64()*float64(time.Millisecond)),
				bytes)
		}
		v, ok := e.estimateAhead()
		if want := 3*time.Millisecond + perByte*100_000; !ok || v < want*8/10 || v > want*13/10 {
			t.Errorf("seed %d: got %v, %t, want about %v", seed, v, ok, time.Duration(want))
		}
	}
}

// TestAheadUnknown: queries that run with another one teach the way, and nothing of the executions.
func TestAheadUnknown(t *testing.T) {
	var e aheadEstimate
	for i := range 128 {
		early := time.Millisecond
		if i%8 != 0 {
			early = unknownEarly
		}
		e.observeAnswer(3*time.Millisecond, 0, early, 1000)
	}
	if v, ok := e.estimateAhead(); !ok || v != 3*time.Millisecond {
		t.Errorf("got %v, %t, want 2ms of way and 1ms of spread", v, ok)
	}
	var none aheadEstimate
	for range 128 {
		none.observeAnswer(3*time.Millisecond, 0, unknownEarly, 1000)
	}
	if v, ok := none.estimateAhead(); !ok || v != 2*time.Millisecond {
		t.Errorf("got %v, %t, want 2ms of way and no spread", v, ok)
	}
}

// TestAheadBounded: what is learned never exceeds a quarter of the shortest QoS
// target that lanes serve.
func TestAheadBounded(t *testing.T) {
	of := func(name string, target time.Duration) HeldModel {
		return HeldModel{ModelID: ModelID{name, 1}, QoSTarget: target, Share: .99, Largest: 1}
	}
	ncf, rm2 := of("ncf", 5*time.Millisecond), of("rm2", 350*time.Millisecond)
	a, idle := box("a"), box("idle")
	idle.Lanes, idle.Models = 0, []HeldModel{of("fast", time.Millisecond)}
	in := newTold(t)
	in.tell(Event{Kind: ViewChanged, Members: []*Member{a, idle}})
	for _, test := range []struct {
		models []HeldModel
		want   time.Duration
	}{
		{[]HeldModel{ncf, rm2}, 1250 * time.Microsecond},
		{[]HeldModel{rm2}, 87500 * time.Microsecond},
	} {
		a := *a
		a.Models = test.models
		in.tell(Event{Kind: Described, Member: &a})
		if in.aheadMost != test.want {
			t.Errorf("with %s got %v, want %v", test.models[0].Name, in.aheadMost, test.want)
		}
	}
}

// TestAheadSpread: an execution that ends early is reckoned with as far as deciding earlier saves
// anything: one and a half ways, and nothing where there is no way.
func TestAheadSpread(t *testing.T) {
	for _, test := range []struct{ way, early, want time.Duration }{
		{0, 5 * time.Millisecond, 0},
		{2 * time.Millisecond, time.Millisecond, 3 * time.Millisecond},
		{2 * time.Millisecond, 50 * time.Millisecond, 5 * time.Millisecond},
		{2 * time.Millisecond, -time.Millisecond, 2 * time.Millisecond},
	} {
		var e aheadEstimate
		for range 2 * aheadAnswers {
			e.observeAnswer(test.way*3/2, 0, test.early, 1000)
		}
		if v, ok := e.estimateAhead(); !ok || v != test.want {
			t.Errorf("a way of %v, ends %v early: got %v, %t, want %v", test.way, test.early, v, ok,
				test.want)
		}
	}
}

// TestAheadOfFewQueries: how long the way is shows also where nothing else happens
// while a query runs.
func TestAheadOfFewQueries(t *testing.T) {
	const way, execution = 2 * time.Millisecond, 20 * time.Millisecond // two of three, there
	in := newTold(t)
	in.greet("w0")
	in.learn(execution)
	in.tell(Event{Kind: GatewayConnected, Gateway: 7})
	in.pass(Turmoil + time.Millisecond)
	for sequence := range uint64(2 * aheadAnswers) {
		in.pass(100 * time.Millisecond)
		in.only(in.submit(7, sequence), Assign)
		in.now += execution + way*3/2
		in.tell(Event{
			Kind: Completed, Agent: "w0", Gateway: 7, Sequence: sequence, Attempt: 1, Model: modelM,
			BatchSize: 3, Execution: execution, Latency: execution + 2*way,
		})
	}
	in.pass(heartbeat)
	if got := in.Ahead(); got != way {
		t.Errorf("learned %v, want %v", got, way)
	}
}

// TestRemainingAges: what a lane says that it has left to do was so when it said it,
// half a way ago.
func TestRemainingAges(t *testing.T) {
	const way, remaining = 4 * time.Millisecond, 30 * time.Millisecond
	for name, tell := range map[string]Event{
		"completed": {
			Kind: Completed, Agent: "w0", Gateway: 7, Sequence: 1, Attempt: 1, Model: modelM,
			BatchSize: 3,
			Execution: time.Millisecond, Latency: time.Millisecond, Remaining: remaining,
		},
		"refused": {
			Kind: Completed, Agent: "w0", Gateway: 7, Sequence: 99, Attempt: 1, Refused: true,
			Remaining: remaining,
		},
		"free":    {Kind: LanesFree, Agent: "w0", Free: []time.Duration{remaining}},
		"greeted": {Kind: Greeted, Agent: "w0", Free: []time.Duration{remaining}},
	} {
		in := newTold(t)
		in.cfg.Ahead, in.ahead.fixed = way, way
		in.greet("w0")
		in.learn(time.Millisecond)
		in.tell(Event{Kind: GatewayConnected, Gateway: 7})
		in.pass(Turmoil)
		in.only(in.submit(7, 1), Assign)
		if name != "completed" {
			in.pass(5 * time.Millisecond)
			in.tell(Event{
				Kind: Completed, Agent: "w0", Gateway: 7, Sequence: 1, Attempt: 1, Model: modelM,
				BatchSize: 3,
				Execution: time.Millisecond, Latency: time.Millisecond,
			})
		}
		in.tell(tell)
		told := in.now
		if now := in.submit(7, 2); len(now) > 0 {
			t.Fatalf("%s: got %+v at once, want nothing", name, now)
		}
		assigned := in.passUntil(Assign)
		// It is free half a way sooner than it says, and the query is on its way before.
		if want := told + remaining - way/2 - way; (assigned - want).Abs() > time.Microsecond {
			t.Errorf("%s: assigned after %v, want %v", name, assigned-told, want-told)
		}
	}
}

// passUntil lets time pass until there is an action of a kind, and says when that was.
func (in *told) passUntil(kind ActionKind) time.Duration {
	in.t.Helper()
	for range 1000 {
		in.now = max(in.now+1, in.Next())
		for _, a := range in.tell(Event{Kind: TimePassed}) {
			if a.Kind == kind {
				return in.now
			}
		}
	}
	in.t.Fatalf("no action of kind %d", kind)
	return 0
}
