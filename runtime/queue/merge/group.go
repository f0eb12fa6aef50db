package merge

import "time"

// MostCollect bounds how long a lane waits for the other queries of a group. Chosen: their gateways
// send them at once, so they are apart by a network's delay; a lane that waits serves nobody.
const MostCollect = 2 * time.Millisecond

// A GroupID names a group at a lane. The zero value names none.
type GroupID struct {
	Number  uint64 // chosen by the leader
	Queries int    // how many it has
}

// A Group is queries that a leader has sent to a lane to run together. Their payloads come one by
// one, maybe from several gateways. The lane waits for those that are missing for at most
// [MostCollect], and a quarter of the time that is left until one of those that have come must
// start alone. Then it runs what is there, and the others run as queries without a group.
type Group struct {
	id      GroupID
	missing int
	present int
	until   time.Duration // when the lane waits no longer
}

// isAwaited reports whether the lane is to wait for more queries of the group, which may be nil.
func (g *Group) isAwaited(now time.Duration) bool {
	return g != nil && g.missing > 0 && now < g.until
}

// Groups are the groups of which queries are at a lane. The zero value has none.
type Groups struct{ of map[GroupID]*Group }

// Arrive returns the group of a query that has arrived; nil if it has none. The caller calls Leave
// when the query has left the lane, answered or not. latestStart is when the query must start
// alone to be in time.
func (gs *Groups) Arrive(id GroupID, now, latestStart time.Duration) *Group {
	if id.Number == 0 || id.Queries < 2 {
		return nil
	}
	g := gs.of[id]
	if g == nil {
		if gs.of == nil {
			gs.of = map[GroupID]*Group{}
		}
		g = &Group{id: id, missing: id.Queries, until: now + MostCollect}
		gs.of[id] = g
	}
	g.missing--
	g.present++
	if slack := latestStart - now; latestStart < now {
		g.until = now
	} else if slack/4 < g.until-now {
		g.until = now + slack/4
	}
	return g
}

// Leave notes that a query of the group, which may be nil, has left the lane.
func (gs *Groups) Leave(g *Group) {
	if g == nil {
		return
	}
	if g.present--; g.present == 0 {
		delete(gs.of, g.id)
	}
}
