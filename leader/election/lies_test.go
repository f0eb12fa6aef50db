package election

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// lyingNodes are a few nodes whose messages arrive at once, and who may be told lies.
type lyingNodes struct {
	t     *testing.T
	now   time.Time
	nodes map[string]*Node // those that run
	disk  map[string]uint64
	queue []letter
	// upsets counts how often a node has lost its leader or its leadership.
	upsets int
}

type letter struct {
	from, to string
	msg      Message
}

var liedTo = []string{"a", "b", "c"}

func newLied(t *testing.T) *lyingNodes {
	f := &lyingNodes{t: t, now: epoch, nodes: map[string]*Node{}, disk: map[string]uint64{}}
	for _, id := range liedTo {
		f.start(id, May)
	}
	return f
}

func (f *lyingNodes) start(id string, role Role) {
	f.t.Helper()
	n, err := New(Config{
		ID: names.AgentName(id), Rank: RankOf(role, false, 0), Epoch: f.disk[id],
		JoinWait: time.Second,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.nodes[id] = n
	f.step(id, &Event{Kind: TimePassed})
	for _, other := range liedTo {
		if other != id {
			f.step(id, &Event{
				Kind: MemberUp, ID: names.AgentName(other), Rank: RankOf(May, false, 0),
			})
		}
	}
}

// kill ends a node. The others have no stream to it any more.
func (f *lyingNodes) kill(id string) {
	delete(f.nodes, id)
	for _, other := range liedTo {
		f.step(other, &Event{Kind: StreamBroken, ID: names.AgentName(id)})
	}
}

func (f *lyingNodes) step(id string, e *Event) {
	n := f.nodes[id]
	if n == nil {
		return
	}
	actions, _ := n.Step(f.now, e)
	for _, a := range slices.Clone(actions) {
		switch a.Kind {
		case Send:
			f.queue = append(f.queue, letter{id, string(a.To), a.Message})
		case Persist:
			f.disk[id] = a.Claim.Epoch
			f.step(id, &Event{Kind: Persisted, Epoch: a.Claim.Epoch})
		case StepDown, NoLeader:
			f.upsets++
		}
	}
}

func (f *lyingNodes) pass(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); f.now = f.now.Add(5 * time.Millisecond) {
		for _, id := range liedTo {
			f.step(id, &Event{Kind: TimePassed})
		}
		for said := 0; len(f.queue) > 0; said++ {
			if said > 1000 {
				f.t.Fatal("the nodes talk without end")
			}
			l := f.queue[0]
			f.queue = f.queue[1:]
			f.step(l.to, &Event{Kind: Received, ID: names.AgentName(l.from), Message: l.msg})
		}
	}
}

// led checks that all that run follow one of them, who leads alone, and returns it.
func (f *lyingNodes) led(when string) (leader names.AgentName) {
	f.t.Helper()
	var leaders []string
	follow := map[string]bool{}
	for id, n := range f.nodes {
		if n.Leading() {
			leaders = append(leaders, id)
		}
		c, _ := n.followed()
		follow[c.String()] = true
	}
	if len(leaders) != 1 || len(follow) != 1 {
		f.t.Fatalf("%s: %v lead, followed are %v; want one leader whom all follow", when, leaders,
			follow)
	}
	return names.AgentName(leaders[0])
}

func (f *lyingNodes) tell(kind MessageKind, epoch uint64, to ...string) {
	claim := Claim{Epoch: epoch, Rank: RankOf(Must, true, 9), Leader: "liar"}
	for _, id := range to {
		f.step(id, &Event{
			Kind: Received, ID: "liar", Message: Message{
				Kind: kind, Claim: claim, Successor: "liar", Heard: true,
			},
		})
	}
}

// TestLies: whatever epoch a member claims, by whatever message and whenever, its fleet elects
// a leader afterwards, and another one after that; and while it has a leader a claim far above
// its epoch changes nothing.
func TestLies(t *testing.T) {
	for _, kind := range []MessageKind{Heartbeat, Propose, Refuse, Resign, Grant, Ack} {
		for _, lie := range []uint64{
			math.MaxUint64, math.MaxUint64 - 1, endOfEpochs, endOfEpochs - 1, maxTrusted + 1,
			maxTrusted, 3 * maxJump, maxJump + 2, maxJump,
		} {
			for _, when := range []string{
				"at the start", "led", "just without a leader", "restarted",
			} {
				for _, to := range [][]string{liedTo, {"a"}, {"b", "c"}} {
					t.Run(fmt.Sprint(kind, " ", lie, " ", when, " ", len(to)), func(t *testing.T) {
						f := newLied(t)
						if when != "at the start" {
							f.pass(2 * time.Second)
							leader := f.led("before")
							switch when {
							case "just without a leader":
								f.kill(string(leader))
								f.pass(1020 * time.Millisecond)
							case "restarted":
								f.start("a", May)
							}
						}
						f.upsets = 0
						f.tell(kind, lie, to...)
						if when == "led" && lie > maxJump+1 && f.upsets > 0 {
							t.Errorf("a claim far above the epoch of its leader upsets the fleet")
						}
						f.pass(4 * time.Second)
						f.kill(string(f.led("after the lie")))
						f.pass(4 * time.Second)
						f.led("after the next election")
						for _, id := range liedTo { // with what they have persisted
							f.start(id, May)
						}
						f.pass(4 * time.Second)
						f.led("after all have restarted")
					})
				}
			}
		}
	}
}

// TestAwayFromLies: who was away, or knows nothing, while lies have taken its fleet far, step by
// step, returns to it, whether or not it may lead.
func TestAwayFromLies(t *testing.T) {
	for _, role := range []Role{Never, May, Must} {
		for _, known := range []bool{true, false} {
			f := newLied(t)
			f.pass(2 * time.Second)
			f.led("before")
			disk := f.disk["c"]
			delete(f.nodes, "c")
			for range 5 {
				c, _ := f.nodes["a"].followed()
				f.tell(Heartbeat, c.Epoch+maxJump, "a", "b")
				f.pass(4 * time.Second)
				f.led("after a lie")
			}
			if c, _ := f.nodes["a"].followed(); !Beyond(c.Epoch, 4*maxJump) {
				t.Fatalf("the fleet is at %v, want it far", c)
			}
			if f.disk["c"] = disk; !known {
				f.disk["c"] = 0
			}
			f.start("c", role)
			f.pass(4 * time.Second)
			f.led(fmt.Sprintf("with one that was away, %v, known %v", role, known))
		}
	}
}

// TestEpochsEnd: a node at the last epoch does not wrap.
func TestEpochsEnd(t *testing.T) {
	n, err := New(Config{ID: "a", Rank: 1, Epoch: endOfEpochs - 1})
	if err != nil {
		t.Fatal(err)
	}
	if actions, next := n.Step(epoch, &Event{}); len(actions) > 0 || !next.IsZero() {
		t.Errorf("at the last epoch: %v, next at %v; want nothing", actions, next)
	}
}
