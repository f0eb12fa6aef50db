package leader

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

// flat is a latency that does not depend on the batch size.
type flat time.Duration

func (f flat) Mean(int) time.Duration              { return time.Duration(f) }
func (f flat) Quantile(float64, int) time.Duration { return time.Duration(f) * 6 / 5 }

// A told state is one that is told what a test likes.
type told struct {
	*State
	t     testing.TB
	now   time.Duration
	event Event
}

func newTold(t testing.TB) *told {
	t.Helper()
	s, err := NewState(Config{Self: "leader"})
	if err != nil {
		t.Fatal(err)
	}
	in := &told{State: s, t: t}
	in.tell(Event{Kind: ViewChanged, Members: []*Member{box("w0"), box("w1")}})
	return in
}

var modelM = ModelID{"m", 1}

func box(name string) *Member {
	return &Member{Name: names.AgentName(name), Type: "box/cpu/1",
		OwnType: names.LaneType("box/cpu/1@" + name), Lanes: 1,
		Models: []HeldModel{
			{ModelID: modelM, QoSTarget: 100 * time.Millisecond, Share: 0.99, Largest: 100},
		}}
}

// tell tells of an event now, and returns what is to be done about it but for what only the
// learning loop and the log get.
func (in *told) tell(e Event) (all []Action) {
	in.t.Helper()
	for _, a := range in.Step(in.now, &e) {
		if a.Kind == Nonsense {
			in.t.Errorf("%s", a.Message)
		}
		if a.Kind < Arrived && a.Kind != Heartbeat {
			all = append(all, a)
		}
	}
	return all
}

// pass lets time pass.
func (in *told) pass(d time.Duration) (all []Action) {
	for until := in.now + d; in.now < until; {
		in.now = min(until, max(in.now+1, in.Next()))
		all = append(all, in.tell(Event{Kind: TimePassed})...)
	}
	return all
}

// greet has a member describe itself and say what its lane holds.
func (in *told) greet(name string, held ...Held) []Action {
	in.tell(Event{Kind: Described, Member: box(name)})
	return in.tell(Event{Kind: Greeted, Agent: names.AgentName(name), Holds: held})
}

// learn has the latency of the model be known.
func (in *told) learn(mean time.Duration) {
	table, err := match.NewTable(flat(mean), 100)
	if err != nil {
		in.t.Fatal(err)
	}
	in.tell(Event{
		Kind: Learned, Advice: &Advice{
			Latencies: []*Latency{
				{TableKey: names.TableKey{Model: "m/1", Type: "box/cpu/1"},
					Profile: profile(in.t, mean),
					Table:   table},
			},
		},
	})
}

// only returns the one action, which must be of a kind.
func (in *told) only(actions []Action, kind ActionKind) *Action {
	in.t.Helper()
	if len(actions) != 1 || actions[0].Kind != kind {
		in.t.Fatalf("got %+v, want one action of kind %d", actions, kind)
	}
	return &actions[0]
}

func (in *told) submit(gateway, sequence uint64) []Action {
	return in.tell(Event{
		Kind: Submitted, Gateway: gateway, Sequence: sequence, Model: ModelID{Name: "m"},
		BatchSize: 3,
	})
}

// TestUnused: what a gateway gives back counts only where it is its own.
func TestUnused(t *testing.T) {
	in := newTold(t)
	in.greet("w0")
	in.learn(time.Millisecond)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.tell(Event{Kind: GatewayConnected, Gateway: 2})
	in.only(in.submit(1, 5), Assign)
	overdue := func() bool { return in.Status().Agents[0].Overdue }
	in.pass(time.Minute)
	if len(in.Holds("w0", 0)) != 1 || !overdue() {
		t.Fatal("the lane is not overdue with the query")
	}
	if in.tell(Event{
		Kind: Unused, Gateway: 2, Sequence: 5, Attempt: 1, Agent: "w0",
	}); len(in.Holds("w0", 0)) != 1 || !overdue() {
		t.Error("the word of another gateway counts")
	}
	assigned := in.only(
		in.tell(Event{Kind: Unused, Gateway: 1, Sequence: 5, Attempt: 1, Agent: "w0"}), Assign)
	if held := in.Holds("w0", 0); assigned.Decision.Attempt != 2 || len(held) != 1 ||
		held[0].Attempt != 2 || overdue() {
		t.Error("the word of its own gateway does not count")
	}
}

// TestClaimedOnItsWay: a query that its gateway says to have sent to a lane may still be on its way
// there, so a greeting without it, soon after, does not take it away. A later one does, and at once
// one of a lane that had it.
func TestClaimedOnItsWay(t *testing.T) {
	in := newTold(t)
	in.greet("w0")
	in.learn(time.Millisecond)
	in.tell(Event{Kind: GatewayConnected, Gateway: 7})
	in.tell(Event{
		Kind: Submitted, Gateway: 7, Sequence: 1, Model: ModelID{Name: "m"}, BatchSize: 1,
		Attempt: 1, Agent: "w0",
	})
	const onTheWay = 20 * time.Millisecond // as package match has it
	in.now += onTheWay - time.Millisecond
	if actions := in.greet("w0"); len(in.Holds("w0", 0)) != 1 || len(actions) > 0 {
		t.Errorf("%v after it was told of, the lane has %v, and %+v is done; want it left alone",
			in.now, in.Holds("w0", 0), actions)
	}
	in.now += 2 * time.Millisecond
	actions := in.greet("w0")
	if len(actions) != 2 || actions[0].Kind != OfferAgain || actions[1].Kind != Assign {
		t.Fatalf("%v after it was told of: %+v, want it offered again", in.now, actions)
	}

	in.greet("w0", Held{Gateway: 7, Sequence: 1, Attempt: 2, Model: modelM, BatchSize: 1})
	if len(in.Holds("w0", 0)) != 1 {
		t.Fatal("the lane does not hold what it says")
	}
	if actions := in.greet("w0"); len(actions) != 2 || actions[0].Kind != OfferAgain {
		t.Errorf("the lane is believed to hold what it had and has no more: %+v", actions)
	}
}

// TestBounds: a leader does not remember any number of one gateway's queries, nor as
// many on one lane.
func TestBounds(t *testing.T) {
	in := newTold(t)
	in.greet("w0")
	in.learn(time.Second) // so that it is not overdue
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	for sequence := range uint64(maxHeld + 10) {
		in.tell(Event{
			Kind: Submitted, Gateway: 1, Sequence: sequence, Model: ModelID{Name: "m"},
			BatchSize: 1, Attempt: 1, Agent: "w0",
		})
	}
	if n := len(in.Holds("w0", 0)); n != maxHeld {
		t.Errorf("a gateway makes the leader believe that a lane has %d queries, want %d", n,
			maxHeld)
	}
	for sequence := range uint64(maxSubmitted) {
		in.gateways[1].queries[sequence] = &query{}
	}
	if a := in.only(in.submit(1, maxSubmitted), Reject); a.Decision.Wait < time.Second ||
		a.Decision.Query.Sequence != maxSubmitted {
		t.Errorf("beyond %d queries of a gateway one more is answered with %+v, want a rejection",
			maxSubmitted, a)
	}
}

// TestAccounts: what the leader remembers of a client's queries has a bound, and is forgotten with
// its gateways.
func TestAccounts(t *testing.T) {
	in := newTold(t)
	const name = 200
	sent, kept := 0, 0
	for g := range uint64(3) {
		in.tell(Event{Kind: GatewayConnected, Gateway: g, Client: "ads"})
		for i := range uint64(MostSubmittedBytes / 2 / (SubmitOverhead + name)) {
			q := &query{gateway: in.gateways[g], sequence: i, weight: SubmitOverhead + name}
			sent++
			if in.accounts["ads"].bytes+q.weight <= MostSubmittedBytes { // as submit
				in.gateways[g].addQuery(q)
				kept++
			}
		}
	}
	if n := in.accounts["ads"].bytes; n > MostSubmittedBytes || kept == sent {
		t.Errorf("%d bytes of %d queries are remembered, want at most %d", n, kept,
			MostSubmittedBytes)
	}
	long := Event{
		Kind: Submitted, Gateway: 0, Sequence: 1 << 40,
		Model: ModelID{Name: strings.Repeat("m", MostSubmittedBytes)}, BatchSize: 1,
	}
	if a := in.only(in.tell(long), Reject); a.Decision.Reason != match.Overloaded {
		t.Errorf("told %+v, want a rejection for overload", a)
	}
	account := in.accounts["ads"]
	for g := range uint64(3) {
		in.tell(Event{Kind: GatewayLost, Gateway: g})
	}
	if n := in.Sizes(); account.bytes != 0 || n["accounts"]+n["queries"]+n["gateways"] != 0 {
		t.Errorf("%d bytes are left, and %v", account.bytes, n)
	}
}

// TestKeepsGivenBack has a lane complete an attempt whose answer did not reach the gateway, after
// that has given it back: the query goes on waiting.
func TestKeepsGivenBack(t *testing.T) {
	in := newTold(t)
	in.greet("w0")
	in.learn(time.Millisecond)
	in.tell(Event{Kind: GatewayConnected, Gateway: 7})
	in.only(in.submit(7, 1), Assign)
	draining := box("w0")
	draining.Draining = true // so that it waits
	in.tell(Event{Kind: Described, Member: draining})
	in.tell(Event{
		Kind: Submitted, Gateway: 7, Sequence: 1, Model: ModelID{Name: "m"}, BatchSize: 1,
		Attempt: 1,
	})
	in.tell(Event{Kind: Unused, Gateway: 7, Sequence: 1, Attempt: 1, Agent: "w0"})
	in.tell(Event{
		Kind: Completed, Agent: "w0", Gateway: 7, Sequence: 1, Attempt: 1, Model: modelM,
		BatchSize: 1, Execution: 1e6,
	})
	if n := in.Sizes(); n["waiting"] != 1 || n["queries"] != 1 {
		t.Errorf("%v, want the one that has no answer to wait", n)
	}
	in.tell(Event{Kind: Cancelled, Gateway: 7, Sequence: 1})
	if n := in.Sizes(); n["waiting"] != 0 || n["queries"] != 0 {
		t.Errorf("%v, want nothing once it is cancelled", n)
	}
}

// TestLargerBatches has a member's model take larger batches than what is known of its latency
// covers: the lanes serve on, and take the larger ones, while the learning loop looks.
func TestLargerBatches(t *testing.T) {
	in := newTold(t)
	in.greet("w0")
	in.learn(time.Millisecond)
	in.tell(Event{Kind: GatewayConnected, Gateway: 7})
	larger := box("w0")
	larger.Models[0].Largest = 150
	in.tell(Event{Kind: Described, Member: larger})
	for i, batch := range []int{3, 150} {
		sequence := uint64(i + 1)
		in.only(
			in.tell(Event{
				Kind: Submitted, Gateway: 7, Sequence: sequence, Model: modelM, BatchSize: batch,
			}), Assign)
		in.tell(Event{
			Kind: Completed, Agent: "w0", Gateway: 7, Sequence: sequence, Attempt: 1, Model: modelM,
			BatchSize: batch, Execution: 1e6,
		})
		in.now += time.Second
	}
	// What was found for fewer comes too late.
	in.learn(2 * time.Millisecond)
	if known := in.latencies[names.TableKey{
		Model: "m/1", Type: "box/cpu/1",
	}]; known.Table.Largest() != 150 {
		t.Errorf("the latency known ends at batch size %d, want 150", known.Table.Largest())
	}
}

// TestStatusOfRemovedVersion: a version that no member has any more is not in the status, once the
// queries that asked for it are a minute old.
func TestStatusOfRemovedVersion(t *testing.T) {
	in := newTold(t)
	in.greet("w0")
	in.greet("w1")
	in.learn(time.Millisecond)
	listed := func() (versions []int64) {
		for _, m := range in.Status().Models {
			versions = append(versions, m.Version)
		}
		return versions
	}
	// hold has both members have these versions, first by their links and then in the view.
	hold := func(versions ...int64) {
		var members []*Member
		for _, name := range []string{"w0", "w1"} {
			m := box(name)
			m.Models = nil
			for _, v := range versions {
				one := box(name).Models[0]
				one.Version = v
				m.Models = append(m.Models, one)
			}
			members = append(members, m)
			in.tell(Event{Kind: Described, Member: m})
		}
		in.tell(Event{Kind: ViewChanged, Members: members})
	}
	hold(1, 2)
	if got := listed(); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("with versions 1 and 2: listed %v", got)
	}
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.submit(1, 5) // for the newest
	hold(1)
	if got := listed(); !slices.Equal(got, []int64{1}) {
		t.Errorf("without version 2: listed %v", got)
	}
	in.tell(Event{
		Kind: Failed, Gateway: 1, Model: ModelID{"m", 1}, N: 1, Why: "unavailable",
	})
	hold()
	if got := listed(); !slices.Equal(got, []int64{1}) {
		t.Errorf("removed within the minute of a query: listed %v", got)
	}
	in.pass(2 * time.Minute)
	if got := listed(); len(got) != 0 {
		t.Errorf("removed for two minutes: listed %v", got)
	}
	hold(1)
	if got := listed(); !slices.Equal(got, []int64{1}) {
		t.Errorf("version 1 is back: listed %v", got)
	}
}

// TestObservedCut: the learning loop is told how long a query had run that its lane has cut off,
// and nothing of one that had not begun.
func TestObservedCut(t *testing.T) {
	for line, want := range map[string]time.Duration{
		"1s completed agent=w0 lane=0 query=1/4 attempt=1 refused=yes model=m/1 batch=3 execution=70ms": 70 *
			time.Millisecond,
		"1s completed agent=w0 lane=0 query=1/4 attempt=1 refused=yes model=m/1 batch=3": 0,
	} {
		in := newTold(t)
		in.greet("w0")
		at, e, err := ParseEvent([]byte(line))
		if got := string(AppendEvent(nil, at, &e)); err != nil || got != line {
			t.Errorf("got %s, %v, want %s", got, err, line)
		}
		in.now = at
		var observed time.Duration
		for _, a := range in.Step(at, &e) {
			if a.Kind == Observed || a.Kind == ObservedCut && (a.BatchSize != 3 ||
				a.Model != modelM) {
				t.Errorf("%s: the learning loop is told %s", line, AppendAction(nil, &a))
			} else if a.Kind == ObservedCut {
				observed += a.Duration
			}
		}
		if observed != want {
			t.Errorf("%s: it is told of a run of %v that was cut off, want %v", line, observed,
				want)
		}
	}
}

// TestDivided: a run on one core of a lane keeps the lane busy for that core's share of its time,
// and tells nothing of runs on the whole lane.
func TestDivided(t *testing.T) {
	for line, want := range map[string]int{
		"1s completed agent=w0 lane=0 query=1/4 attempt=1 model=m/1 batch=3 execution=1ms":             1,
		"1s completed agent=w0 lane=0 query=1/4 attempt=1 model=m/1 batch=3 execution=1ms divided=yes": 0,
	} {
		in := newTold(t)
		in.greet("w0")
		at, e, err := ParseEvent([]byte(line))
		if got := string(AppendEvent(nil, at, &e)); err != nil || got != line {
			t.Errorf("got %s, %v, want %s", got, err, line)
		}
		in.now = at
		observed := 0
		for _, a := range in.Step(at, &e) {
			if a.Kind == Observed {
				observed++
			}
		}
		if busy := in.Status().Agents[0].Busy; observed != want || busy == 0 {
			t.Errorf("%s: %d observations, want %d; busy for %v of the time", line, observed, want,
				busy)
		}
	}
}
