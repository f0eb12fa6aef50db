package leader

import (
	"testing"
	"time"
)

// query has one query submitted, assigned, completed and cancelled.
func (in *told) query(sequence uint64) {
	in.now += 10 * time.Millisecond
	in.event = Event{
		Kind: Submitted, Gateway: 7, Sequence: sequence, Model: ModelID{Name: "m"}, BatchSize: 3,
	}
	in.Step(in.now, &in.event)
	in.event = Event{
		Kind: Completed, Agent: "w0", Gateway: 7, Sequence: sequence, Attempt: 1, Model: modelM,
		BatchSize: 3,
		Execution: time.Millisecond, Latency: 2 * time.Millisecond,
	}
	in.Step(in.now+time.Millisecond, &in.event)
	in.event = Event{Kind: Cancelled, Gateway: 7, Sequence: sequence}
	in.Step(in.now+2*time.Millisecond, &in.event)
}

func newServing(t testing.TB) *told {
	in := newTold(t)
	in.greet("w0")
	in.learn(time.Millisecond)
	in.tell(Event{Kind: GatewayConnected, Gateway: 7})
	return in
}

// TestAllocations: a state that serves allocates nothing, however long it does. An estimate of the
// ways and a heartbeat are among what it does.
func TestAllocations(t *testing.T) {
	in := newServing(t)
	sequence := uint64(0)
	serve := func() {
		for range 100 {
			sequence++
			in.query(sequence)
			in.event = Event{Kind: TimePassed}
			in.Step(in.now, &in.event)
		}
	}
	if n := testing.AllocsPerRun(100, serve); n > 0 {
		t.Errorf("100 queries take %v allocations, want none", n)
	}
}

// BenchmarkQuery times all that a state does about a query.
func BenchmarkQuery(b *testing.B) {
	in := newServing(b)
	b.ReportAllocs()
	sequence := uint64(0)
	for b.Loop() {
		sequence++
		in.query(sequence)
	}
}
