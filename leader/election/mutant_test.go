package election

import (
	"strings"
	"testing"
)

// A mutant is a node with a bug, made by tampering with what it is told, what it
// holds and what it tells.
type mutant struct {
	name     string
	caught   string                              // what the fault must say
	forgets  bool                                // the persisted epoch, at a restart
	unfenced bool                                // takes control from any leader
	before   func(n *Node, e *Event) (told bool) // false: the node is not stepped
	after    func(n *Node, actions []Action) []Action
}

func mutants() []*mutant {
	type terms map[*Node]Claim // what each node follows
	renamed, switched := terms{}, terms{}
	return []*mutant{
		{
			name: "accepts a stale claim", caught: " follows ",
			before: func(n *Node, e *Event) bool {
				if e.Kind == Received && e.Message.Kind == Heartbeat && !n.leading &&
					e.Message.Claim.Compare(n.top) < 0 {
					n.top = Claim{}
				}
				return true
			},
		},
		{name: "obeys whoever says that it leads", caught: " obeys ", unfenced: true},
		{
			name: "leads twice", caught: " leads twice",
			before: func(n *Node, e *Event) bool {
				if n.leading && e.Kind == StreamBroken { // takes it for the leader's
					n.leading, n.following, n.base = false, false, n.now
				}
				return true
			},
		},
		{
			name: "leads beside another of its epoch", caught: "two lead",
			before: func(n *Node, e *Event) bool {
				return !(n.leading && e.Kind == Received && e.Message.Claim.Epoch == n.top.Epoch &&
					e.Message.Claim != n.top)
			},
		},
		{
			name: "does not step down", caught: "two lead",
			before: func(n *Node, e *Event) bool {
				return !(n.leading && e.Kind == Received && e.Message.Claim.Compare(n.top) > 0)
			},
		},
		{
			name: "loses a re-submit: the same agent leads again", caught: "lacks queries",
			after: func(n *Node, actions []Action) []Action {
				return withoutFollow(actions, func(c Claim) bool {
					last := renamed[n]
					renamed[n] = c
					return last.Leader == c.Leader
				})
			},
		},
		{
			name: "loses a re-submit: one leader after another", caught: "lacks queries",
			after: func(n *Node, actions []Action) []Action {
				for _, a := range actions {
					if a.Kind == NoLeader {
						delete(switched, n)
					}
				}
				return withoutFollow(actions, func(c Claim) bool {
					_, known := switched[n]
					switched[n] = c
					return known
				})
			},
		},
		{name: "reuses an epoch after a restart", caught: " has led epoch", forgets: true},
		{
			name: "reuses the epoch of a lost leader", caught: " has led epoch",
			before: func(n *Node, _ *Event) bool {
				if n.top.Epoch > 0 && !n.claiming {
					n.seen = n.top.Epoch - 1
				}
				return true
			},
		},
	}
}

// withoutFollow drops what a follower is told of a new leader, where drop says so.
func withoutFollow(actions []Action, drop func(Claim) bool) []Action {
	kept := actions[:0]
	for i, a := range actions {
		if a.Kind == Follow && drop(a.Claim) && (i == 0 ||
			actions[i-1].Kind != Lead && actions[i-1].Kind != StepDown) {
			continue
		}
		kept = append(kept, a)
	}
	return kept
}

// TestMutants checks that the schedules find the bugs they are there to find.
func TestMutants(t *testing.T) {
	const most = 300
	for _, m := range mutants() {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			others := 0
			for seed := uint64(1); seed <= most; seed++ {
				_, err := runSchedule(seed, m, nil)
				if err != nil && strings.Contains(err.Error(), m.caught) {
					t.Logf("seed %d, after %d of other faults: %v", seed, others, err)
					return
				}
				if err != nil {
					others++
				}
			}
			t.Errorf("%d schedules do not find a node that %s", most, m.name)
		})
	}
}
