package match

import (
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/internal/assign"
)

// The KAIROS paper (section 5.1) leaves the values of the first two to the implementation.
const (
	// kairosMargin is the part of the QoS target that waiting and latency may use (Eq. 8). Chosen:
	// the rest is for the network and errors of the estimates.
	kairosMargin = 0.98
	// kairosPenalty times the QoS target replaces the latency of a pair that would miss the target
	// (Eq. 8).
	kairosPenalty = 10
	// roundRows bounds the waiting queries of a round, in queries per lane that serves them.
	// Chosen: a round assigns one query to a lane, so those behind the second wait for the next
	// round anyway; the assignment's time grows with the cube.
	roundRows = 2
)

// kairos is the query distribution of KAIROS section 5.1: Eq. 4 to 8. Every round matches the
// waiting queries to all lanes, the busy ones with their remaining time, at the least sum of C_j *
// L_ij. Only pairs whose lane is open are carried out. With several models, each latency is in
// units of its model's QoS target.
type kairos struct {
	solver  assign.Solver
	rows    []*query
	columns []*lane
	start   []float64 // by column
	room    []int     // by column: how many more rows are worth looking at because of it
	cost    []float64
	model   []int // by row and column: the variant
	match   []int
}

func (*kairos) enqueueArrival(*shard, *query) {}

func (k *kairos) assignQueries(s *shard) {
	k.columns, k.start, k.rows = k.columns[:0], k.start[:0], k.rows[:0]
	k.cost, k.model = k.cost[:0], k.model[:0]
	for _, l := range s.lanes {
		if l.isUsable() {
			k.columns = append(k.columns, l)
			k.start = append(k.start, l.start())
		}
	}
	limit := roundRows * len(k.columns)
	if s.live.Len()+s.late.Len() <= limit {
		for q := range s.allWaiting {
			k.rows = append(k.rows, q)
		}
	} else { // overload: those still in time first
		k.room = k.room[:0]
		for range k.columns {
			k.room = append(k.room, roundRows)
		}
		for q := range s.oldestLive(2 * limit) {
			if k.addRow(q); len(k.rows) == limit {
				break
			}
		}
		looked := 0
		for q := s.late.First(); q != nil && len(k.rows) < limit && looked < 2*limit; q = q.inShard.Next() {
			k.addRow(q)
			looked++
		}
	}
	now := s.m.now
	for _, q := range k.rows {
		target := q.family.target
		limit := kairosMargin*target - (now - q.arrival)
		for j, l := range k.columns {
			c := math.Inf(1)
			model, latency := l.inTime(q, limit-k.start[j])
			if model >= 0 && l.outlastsRun(l.latencyTable(model), q.batch) {
				L := k.start[j] + latency
				if L > limit {
					L = kairosPenalty * target
				}
				c = l.typ.coefficient[model] * L / target
			}
			k.cost, k.model = append(k.cost, c), append(k.model, model)
		}
	}
	k.match = slices.Grow(k.match[:0], len(k.rows))[:len(k.rows)]
	if _, _, err := k.solver.Solve(k.cost, len(k.rows), len(k.columns), k.match); err != nil {
		panic(err) // costs are finite or +Inf
	}
	for i, j := range k.match {
		if j >= 0 && k.columns[j].open() {
			at := i*len(k.columns) + j
			s.assignToLane(k.rows[i], k.columns[j], k.model[at], k.cost[at])
		}
	}
}

// addRow makes q a row if a lane that serves it has room.
func (k *kairos) addRow(q *query) {
	roomy := -1
	for j, l := range k.columns {
		if k.room[j] > 0 && (roomy < 0 || k.room[j] > k.room[roomy]) && l.canServe(q) {
			roomy = j
		}
	}
	if roomy >= 0 {
		k.room[roomy]--
		k.rows = append(k.rows, q)
	}
}
