package election

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

func TestRank(t *testing.T) {
	inOrder := []Rank{
		RankOf(Never, true, 8),
		RankOf(May, false, -1),
		RankOf(May, false, 1),
		RankOf(May, false, 1<<20),
		RankOf(May, true, 0),
		RankOf(May, true, 3),
		RankOf(Must, false, 0),
		RankOf(Must, false, 7),
		RankOf(Must, true, 0),
	}
	for i, r := range inOrder[1:] {
		if r <= inOrder[i] {
			t.Errorf("rank %d is %#x, want more than %#x", i+1, r, inOrder[i])
		}
	}
	for i, want := range []Role{Never, May, May, May, May, May, Must, Must, Must} {
		if got := inOrder[i].Role(); got != want {
			t.Errorf("rank %#x: role is %v, want %v", inOrder[i], got, want)
		}
	}
	if RankOf(May, false, -1) != RankOf(May, false, 0) {
		t.Error("fewer than 0 spare cores are not 0")
	}
}

func TestRole(t *testing.T) {
	for _, r := range []Role{Never, May, Must} {
		if got, err := ParseRole(r.String()); got != r || err != nil {
			t.Errorf("%v reads as %v, %v", r, got, err)
		}
	}
	if _, err := ParseRole("always"); err == nil || !strings.Contains(err.Error(), `"always"`) {
		t.Errorf("role always: got %v", err)
	}
}

func TestClaimOrder(t *testing.T) {
	inOrder := []Claim{{}, {1, 1, "a"}, {1, 1, "b"}, {1, 2, "a"}, {2, 1, "a"}}
	for i, c := range inOrder {
		for j, d := range inOrder {
			if got := c.Compare(d); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%v compared with %v: %d", c, d, got)
			}
		}
	}
}

func TestConfigFaults(t *testing.T) {
	_, err := New(Config{Epoch: 1 << 63, JoinWait: -1, Heartbeat: time.Second})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"no id", "epoch is 9223372036854775808, want below 2^63", "join wait is -1ns",
		"silence is 1s, want at least ten heartbeats of 1s",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

// leadingNode is a node a that leads the member b, which has acknowledged that.
func leadingNode(t *testing.T) (n *Node, at time.Time) {
	t.Helper()
	n, err := New(Config{ID: "a", Rank: RankOf(May, false, 0)})
	if err != nil {
		t.Fatal(err)
	}
	at = epoch
	n.Step(at, &Event{})
	n.Step(at, &Event{Kind: Persisted, Epoch: 1})
	n.Step(at, &Event{Kind: MemberUp, ID: "b", Rank: 1})
	n.Step(at, &Event{Kind: Received, ID: "b", Message: Message{Kind: Ack, Claim: n.top}})
	if !n.Leading() {
		t.Fatal("does not lead")
	}
	return n, at
}

// TestResignedInTime checks that a leader leaves though its successor does not take over.
func TestResignedInTime(t *testing.T) {
	n, at := leadingNode(t)
	n.Step(at, &Event{Kind: Resigned})
	ack := Event{Kind: Received, ID: "b", Message: Message{Kind: Ack, Claim: n.top}}
	for at.Sub(epoch) <= time.Second {
		at = at.Add(10 * time.Millisecond)
		actions, _ := n.Step(at, &ack)
		down := slices.ContainsFunc(actions, func(a Action) bool { return a.Kind == StepDown })
		if down != (at.Sub(epoch) == time.Second) {
			t.Fatalf("%v after it resigned: %v", at.Sub(epoch), actions)
		}
		if down {
			return
		}
	}
	t.Error("leads on")
}

// TestFewHeartbeats checks that a member gets few heartbeats while it acknowledges them and there
// is no news, and one each 50 ms otherwise.
func TestFewHeartbeats(t *testing.T) {
	n, at := leadingNode(t)
	beats := func(acknowledges bool) (beats int) {
		for end := at.Add(2 * time.Second); at.Before(end); {
			at = at.Add(10 * time.Millisecond)
			actions, _ := n.Step(at, &Event{Kind: TimePassed})
			for _, a := range actions {
				if a.Kind != Send || a.To != "b" || a.Message.Kind != Heartbeat {
					continue
				}
				if beats++; acknowledges {
					ack := Message{Kind: Ack, Claim: a.Message.Claim}
					n.Step(at, &Event{Kind: Received, ID: "b", Message: ack})
				}
			}
		}
		return beats
	}
	beats(true)
	if got := beats(true); got != 10 {
		t.Errorf("%d heartbeats in 2 s to a member that acknowledges them, want 10", got)
	}
	if got := beats(false); got < 36 {
		t.Errorf("%d heartbeats in 2 s to a member that acknowledges none, want at least 36", got)
	}
	beats(true)
	n.Step(at, &Event{Kind: MemberUp, ID: "c", Rank: 2}) // the next successor
	if got := beats(true); got != 10 {
		t.Errorf("%d heartbeats in 2 s beside a member that acknowledges none, want 10", got)
	}
	n.Step(at, &Event{Kind: Received, ID: "c", Message: Message{Kind: Ack, Claim: n.top}})
	at = at.Add(50 * time.Millisecond)
	actions, _ := n.Step(at, &Event{Kind: TimePassed})
	if !slices.ContainsFunc(actions, func(a Action) bool {
		return a.To == "b" && a.Message.Kind == Heartbeat && a.Message.Successor == "c"
	}) {
		t.Errorf("the next successor is not told at once: %v", actions)
	}
}

// TestNotPersisted checks that a node whose disk fails does not lead, and tries again.
func TestNotPersisted(t *testing.T) {
	n, err := New(Config{ID: "a", Rank: 1, Epoch: 4})
	if err != nil {
		t.Fatal(err)
	}
	var asked []uint64
	at := epoch
	for range 20 {
		actions, next := n.Step(at, &Event{})
		for _, a := range actions {
			if a.Kind != Persist {
				t.Fatalf("%v", a)
			}
			asked = append(asked, a.Claim.Epoch)
		}
		at = next
	}
	if len(asked) < 5 || asked[0] != 5 || !slices.IsSorted(asked) {
		t.Errorf("asked to persist %v", asked)
	}
	if _, _ = n.Step(at, &Event{Kind: Persisted, Epoch: asked[0]}); n.Leading() {
		t.Error("leads with an epoch that was not persisted")
	}
}

// TestReached checks who counts as reached: who acknowledged this term, not long ago.
func TestReached(t *testing.T) {
	n, at := leadingNode(t)
	n.Step(at, &Event{Kind: MemberUp, ID: "c"})
	check := func(want int) {
		t.Helper()
		if got, of := n.reached(); got != want || of != 3 {
			t.Errorf("reaches %d of %d, want %d of 3", got, of, want)
		}
	}
	check(2)
	old := n.top
	old.Epoch--
	n.Step(at, &Event{Kind: Received, ID: "c", Message: Message{Kind: Ack, Claim: old}})
	check(2)
	n.Step(at, &Event{Kind: StreamBroken, ID: "b"})
	check(1)
	n.Step(at, &Event{Kind: Received, ID: "b", Message: Message{Kind: Ack, Claim: n.top}})
	check(2)
	for range 20 {
		at = at.Add(50 * time.Millisecond)
		n.Step(at, &Event{})
	}
	check(1)
}

// TestObeys checks that control is taken from the highest claim known, also second-hand.
func TestObeys(t *testing.T) {
	n, err := New(Config{ID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	check := func(epoch uint64, leader string, want bool) {
		t.Helper()
		if got := n.obeys(epoch, names.AgentName(leader)); got != want {
			t.Errorf("obeys %d/%s: got %v, want %v", epoch, leader, got, want)
		}
	}
	check(0, "", false)
	n.Step(epoch, &Event{
		Kind: Received, ID: "a", Message: Message{Kind: Heartbeat, Claim: Claim{3, 1, "a"}},
	})
	check(3, "a", true)
	check(2, "a", false)
	check(4, "a", false)
	check(3, "b", false)
	n.Step(epoch, &Event{
		Kind: Received, ID: "b", Message: Message{
			Kind: Refuse, Claim: Claim{4, 1, "b"}, Heard: true,
		},
	})
	check(3, "a", false)
	check(4, "b", true)
}

// TestStepAllocates checks that a leader's heartbeats allocate nothing.
func TestStepAllocates(t *testing.T) {
	n, at := leadingNode(t)
	e := &Event{}
	if got := testing.AllocsPerRun(100, func() {
		at = at.Add(50 * time.Millisecond)
		n.Step(at, e)
	}); got != 0 {
		t.Errorf("%v allocations a step, want 0", got)
	}
}

// TestAnyEvents checks what holds whatever a node is told, in whatever order.
func TestAnyEvents(t *testing.T) {
	for seed := uint64(1); seed <= 500; seed++ {
		w := newWorld(seed)
		r := w.rng
		for range 4 { // the first is the node, the others only have names
			w.add(RankOf(Role(r.IntN(3)), false, r.IntN(2)))
		}
		p := w.procs[0]
		w.start(p)
		var log []Event
		for range 200 {
			w.now += w.between(0,
				[]time.Duration{
					time.Millisecond, 100 * time.Millisecond, 2 * time.Second,
				}[r.IntN(3)])
			other, leader := w.procs[r.IntN(4)], w.procs[r.IntN(4)]
			e := Event{Kind: EventKind(r.IntN(int(Resigned) + 1)), ID: other.id, Rank: other.rank}
			e.Message = Message{Kind: MessageKind(r.IntN(int(Resign) + 1)), Heard: r.IntN(2) == 0,
				Claim: Claim{
					Epoch: p.node.seen + uint64(r.IntN(3)), Rank: leader.rank, Leader: leader.id,
				}}
			if r.IntN(2) == 0 {
				e.Message.Successor = w.procs[r.IntN(4)].id
			}
			switch {
			case e.Kind == Persisted:
				p.disk = max(p.disk, p.node.claim.Epoch)
				e.Epoch = p.disk
			case e.Kind == Resigned && r.IntN(20) != 0: // or it would soon do nothing
				e.Kind = TimePassed
			}
			w.led[e.Message.Claim] = true
			log = append(log, e)
			w.step(p, e)
			if w.fault == nil && p.leading != p.node.Leading() {
				w.failf("leads is %v by its actions, but %v by its state", p.leading,
					p.node.Leading())
			}
			if c, _ := p.node.followed(); w.fault == nil && c != p.follows {
				w.failf("follows %v by its actions, %v by its state", p.follows, c)
			}
			if w.fault != nil {
				t.Fatalf("seed %d: %v, after %v", seed, w.fault, log)
			}
		}
	}
}
