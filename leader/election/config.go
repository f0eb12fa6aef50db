package election

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Role says whether an agent leads.
type Role uint8

const (
	// Never leads.
	Never Role = iota
	// May lead when there is no leader.
	May
	// Must lead: the agent takes over as soon as it hears a leader of role May, and no agent of
	// role May takes over from it. If several agents must lead, one of them does.
	Must
)

var roleNames = [...]string{Never: "never", May: "may", Must: "must"}

func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}

// ParseRole is the inverse of [Role.String].
func ParseRole(s string) (Role, error) {
	for r, name := range roleNames {
		if s == name {
			return Role(r), nil
		}
	}
	return 0, fmt.Errorf("role is %q, want never, may or must", s)
}

// A Rank orders the agents: of two that could lead, the one of higher rank should. Agents of equal
// rank are ordered by id. Ranks travel in gossip and in claims. The zero Rank is that of an agent
// that never leads.
type Rank uint32

const (
	rankMust      Rank = 1 << 31
	rankLanesOff  Rank = 1 << 30
	rankCoresMask Rank = 1<<16 - 1 // one more than the spare cores
)

// RankOf returns the rank of an agent. It orders by role first, then by whether the agent's lanes
// take no CPU (they run on a GPU, or it has none), then by how many cores no lane uses. spareCores
// below 0 counts as 0, and above 65,534 as 65,534.
func RankOf(role Role, lanesTakeNoCPU bool, spareCores int) Rank {
	if role == Never {
		return 0
	}
	r := Rank(min(max(spareCores, 0), int(rankCoresMask)-1)) + 1
	if lanesTakeNoCPU {
		r |= rankLanesOff
	}
	if role == Must {
		r |= rankMust
	}
	return r
}

// Role is the role of an agent of rank r.
func (r Rank) Role() Role {
	switch {
	case r == 0:
		return Never
	case r&rankMust != 0:
		return Must
	}
	return May
}

// Each election raises the epoch by one, so epochs stay below 2^20 for years, and two honest
// agents' epochs stay within 2^20 of each other, however long one was away. An epoch further off is
// a lie, or of another fleet; see [Beyond].
const (
	maxJump = 1 << 20
	// maxTrusted is the highest epoch that a node which follows nobody accepts from others,
	// whatever it knows itself. endOfEpochs is above all epochs. Between the two is room for 2^42
	// jumps, so a lie never leaves a fleet without an epoch for an election.
	maxTrusted  = 1 << 62
	endOfEpochs = 1 << 63
)

// Beyond reports whether an epoch is so far above a known one that elections cannot have led there.
func Beyond(epoch, known uint64) bool { return epoch > known && epoch-known > maxJump }

// A Claim is the right to lead that an agent claims. The zero Claim is lower than
// any other.
type Claim struct {
	Epoch  uint64 // 1 or more, below 2^63
	Rank   Rank
	Leader names.AgentName
}

// Compare is negative if c is lower than d, 0 if they are the same claim, and
// positive if c is higher.
func (c Claim) Compare(d Claim) int {
	return cmp.Or(cmp.Compare(c.Epoch, d.Epoch), cmp.Compare(c.Rank, d.Rank),
		cmp.Compare(c.Leader, d.Leader))
}

func (c Claim) String() string {
	if c == (Claim{}) {
		return "none"
	}
	return fmt.Sprintf("%d/%s", c.Epoch, c.Leader)
}

// A Config describes the agent of a [Node]. All agents of a fleet should have the same intervals.
type Config struct {
	// ID is the agent's name, not empty and unique among the members.
	ID names.AgentName
	// Rank is the agent's rank, from [RankOf].
	Rank Rank
	// Epoch is the last epoch that the agent has persisted, 0 if none; below 2^63. With an older
	// one the agent could claim an epoch that it has led already.
	Epoch uint64
	// JoinWait is how long after its first step a node waits to hear a leader before it claims.
	// With 0 it claims at once, which is right for an agent that knows no other. An agent that
	// joins others should wait about 1 s.
	JoinWait time.Duration
	// Heartbeat is how often the leader tells a member that it leads, until the member acknowledges
	// it; then it does so every fourth time. 0 means 50 ms.
	Heartbeat time.Duration
	// Silence is how long the agents wait, after they last heard the leader, before they claim; at
	// least ten heartbeats. 0 means 1 s.
	Silence time.Duration
}

// Validate reports everything that is wrong with c, or nil.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("election config: "+format, args...))
	}
	if c.ID == "" {
		bad("the agent has no id")
	}
	if c.Epoch >= endOfEpochs {
		bad("epoch is %d, want below 2^63", c.Epoch)
	}
	for _, d := range []struct {
		name string
		is   time.Duration
	}{{"join wait", c.JoinWait}, {"heartbeat", c.Heartbeat}, {"silence", c.Silence}} {
		if d.is < 0 {
			bad("%s is %v, want >= 0", d.name, d.is)
		}
	}
	if d := c.withDefaults(); d.Silence < 10*d.Heartbeat {
		bad("silence is %v, want at least ten heartbeats of %v", d.Silence, d.Heartbeat)
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.Heartbeat = cmp.Or(c.Heartbeat, 50*time.Millisecond)
	c.Silence = cmp.Or(c.Silence, time.Second)
	return c
}
