package sim

import (
	"fmt"
	"math/rand/v2"

	"github.com/muster-serve/muster/leader/match"
)

// numbering is the distance between the sequence numbers of queries; see [match.Submitted].
const numbering = match.MostParts + 1

// wholeOf is the sequence number of the query of which seq is a part, or seq itself.
func wholeOf(seq uint64) uint64 { return seq - seq%numbering }

// split replaces a query that waits by its parts. Each has a service time of its own luck.
func (r *run) split(seq uint64, rows []int) {
	q := r.at(seq)
	sum := 0
	for _, n := range rows {
		sum += n
	}
	if !q.waits || q.split || wholeOf(seq) != seq || sum != int(q.batch) ||
		len(rows) < 2 || len(rows) > match.MostParts {
		r.fail(fmt.Errorf("the leader at %v: splits query %d of %d rows into %v; it waits: %v, "+
			"was split: %v", r.now, seq, q.batch, rows, q.waits, q.split))
		return
	}
	q.split, q.left = true, int8(len(rows))
	r.models[q.model].counts.Split++
	for i, n := range rows {
		part := seq + 1 + uint64(i)
		luck := rand.New(rand.NewPCG(r.cfg.Seed, part))
		*r.at(part) = query{
			arrival: q.arrival, uniform: rank(luck), noise: r.factor(luck), model: q.model,
			variant: q.variant, batch: int32(n), live: true, waits: true,
		}
	}
}

// endParts ends the parts of a query that has its outcome, and tells the leader.
func (r *run) endParts(seq uint64) {
	q := r.at(seq)
	q.left = 0
	told := false
	for part := seq + 1; part < seq+numbering; part++ {
		p := r.at(part)
		if !p.live {
			continue
		}
		p.live = false
		r.setWaits(part, false)
		if p.last != nil && !p.last.over {
			r.revoke(p.last, r.cfg.RTT/2)
		}
		if !told {
			told = true
			q.open++
			r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: cancelKnown, query: seq})
		}
	}
}
