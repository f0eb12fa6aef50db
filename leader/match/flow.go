package match

import (
	"cmp"
	"math"
	"slices"
)

// Queries of several tenants, and of several bands, share the lanes as their flows do. A band is a
// priority: what waits of a lower number is planned first, alone, and the next band gets the lanes
// and slots that are left. Within a band the flows of tenants share the lanes' time in proportion to
// their weights, by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a flow's tag is
// the lanes' time that it has got, divided by its weight, and the flow with the smallest tag is next.
// A flow that begins to wait starts at the tag of the query that started last, so it gets no credit
// for the time when it wanted nothing. Time, not queries, counts: a tenant of large queries gets
// fewer of them. Where all queries are of one flow, nothing depends on it.

const (
	// DefaultBand is the band of a query that names none, and MaxBand the lowest. Triton has 1 as
	// the highest, too. Chosen: there is room on both sides.
	DefaultBand, MaxBand = 5, 10
	// bandFloor is the share of the lanes' time that the lowest band gets that waits, whatever the
	// others want, so that it does not starve.
	bandFloor = 0.05
)

// A flowKey tells flows apart. The zero value is that of queries without a tenant in the default
// band.
type flowKey struct {
	// below is how many bands the band is below the default one; less than 0: above it.
	below  int
	tenant string
}

// band is the priority of k's queries, 1 for the highest.
func (k flowKey) band() int { return DefaultBand + k.below }

// flowOfBand is the key of a tenant's flow in a band; 0 is the default one.
func flowOfBand(band int, tenant string) flowKey {
	if band <= 0 {
		band = DefaultBand
	}
	return flowKey{below: min(band, MaxBand) - DefaultBand, tenant: tenant}
}

// isWeight reports whether w may be a tenant's weight.
func isWeight(w float64) bool { return w > 0 && w <= math.MaxFloat64 }

// weightOrOne is w, or 1 if that is no weight. It is bounded, so that tags stay numbers.
func weightOrOne(w float64) float64 {
	if !isWeight(w) {
		return 1
	}
	return min(max(w, 1e-3), 1e3)
}

// A flow is a tenant's queries in a band that wait at a shard, or did so lately.
//
// Invariant: live counts the live queries of the shard with this key, and tag >= 0.
type flow struct {
	flowKey
	weight float64
	tag    float64 // the start tag of its next query: ms of lanes' time by its weight
	live   int
}

// maxFlows is how many flows a shard tells apart; the tenants of further ones of a band count as one.
// Chosen: each round looks at all, and a shard has some twenty lanes.
const maxFlows = 128

// flowOf returns the flow of a query, which begins if there is none.
func (s *shard) flowOf(q *query) *flow {
	f := s.findFlow(q)
	if f == nil {
		q.tenant = ""
		if f = s.findFlow(q); f == nil { // there are maxFlows others, of ten bands at most
			f = &flow{flowKey: q.flowKey}
			s.flows = append(s.flows, f)
		}
	}
	return f
}

// findFlow is flowOf, but nil if there are too many flows.
func (s *shard) findFlow(q *query) *flow {
	var free *flow
	for _, f := range s.flows {
		if f.flowKey == q.flowKey {
			return f
		}
		// One that is not ahead of its band loses nothing if it is forgotten.
		if free == nil && f.live == 0 && f.tag <= s.virtual[f.band()] {
			free = f
		}
	}
	if free == nil {
		if len(s.flows) >= maxFlows {
			return nil
		}
		free = &flow{}
		s.flows = append(s.flows, free)
	}
	*free = flow{flowKey: q.flowKey}
	return free
}

// enterFlow counts a query that becomes live in its flow.
func (s *shard) enterFlow(q *query) {
	if s.live.Len() == 0 { // nobody waited: what each has got before does not count any more
		for _, f := range s.flows {
			s.virtual[f.band()] = max(s.virtual[f.band()], f.tag)
		}
	}
	f := s.flowOf(q)
	if f.live == 0 {
		f.tag = max(f.tag, s.virtual[f.band()])
	}
	f.live++
	f.weight = q.weight
	q.flow = f
}

// leaveFlow undoes enterFlow.
func (s *shard) leaveFlow(q *query) {
	q.flow.live--
	q.flow = nil
}

// chargeFlow charges the time that a query takes of a lane, in ms, to its flow.
func (s *shard) chargeFlow(q *query, ms float64) {
	f := s.flowOf(q)
	band := f.band()
	s.virtual[band] = max(s.virtual[band], f.tag)
	f.weight = q.weight
	f.tag = max(f.tag, s.virtual[band]) + ms/q.weight
	// Up to one QoS target is owed or had beforehand, so that the past does not count for long.
	most := s.m.spareOver / spareTargets
	if lowest := s.lowestBand(); lowest > band {
		s.owed = min(s.owed+bandFloor*ms, most)
	} else {
		s.owed = max(s.owed-(1-bandFloor)*ms, -most)
	}
}

// lowestBand is the lowest band that has live queries, 0 if there are none.
func (s *shard) lowestBand() (lowest int) {
	for _, f := range s.flows {
		if f.live > 0 {
			lowest = max(lowest, f.band())
		}
	}
	return lowest
}

// waitingFlows returns the flows that have live queries, in the order in which they go. The slice is
// valid until the next call.
func (s *shard) waitingFlows() []*flow {
	s.inTurn = s.inTurn[:0]
	for _, f := range s.flows {
		if f.live > 0 {
			s.inTurn = append(s.inTurn, f)
		}
	}
	if len(s.inTurn) > 1 {
		slices.SortStableFunc(s.inTurn, func(f, o *flow) int {
			return cmp.Or(cmp.Compare(f.below, o.below), cmp.Compare(f.tag, o.tag),
				cmp.Compare(f.tenant, o.tenant))
		})
	}
	return s.inTurn
}

// firstOfLowestBand is the flow that is next of the lowest band of the last waitingFlows, which are
// not empty.
func (s *shard) firstOfLowestBand() *flow {
	lowest := s.inTurn[len(s.inTurn)-1].below
	i := slices.IndexFunc(s.inTurn, func(f *flow) bool { return f.below == lowest })
	return s.inTurn[i]
}

// goesBeforeFlow reports whether queries of flow f go before those of flow o.
func (f *flow) goesBeforeFlow(o *flow) bool {
	return f.below < o.below || f.below == o.below && f.tag < o.tag
}
