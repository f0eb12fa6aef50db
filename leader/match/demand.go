package match

import (
	"iter"
	"math"
	"slices"
)

// Above the limit not all queries can be answered in time. Horizon then serves of each family the
// same part of what the family would reach if it were alone on the lanes: the shares are max-min
// fair (Bertsekas and Gallager, Data Networks, section 6.5.2). So a model with a short target is
// not passed over for the many queries of a long target that have waited for longer, and a family
// that floods the lanes takes no more from the others than one that just fills them. Below the
// limit all shares are 1, and nothing depends on them.

// A shardDemand is what a family's queries of one flow have asked of a shard and lost there in the
// last time. The counts decay over Matcher.spareOver; at time since they were right.
type shardDemand struct {
	family *family
	flowKey
	// arrivals counts queries that came to wait, lost those of them that were not started or not
	// answered in time. cost is the sum of the costs of all of them, in units of what an average
	// query is worth.
	arrivals, lost, cost float64
	since                float64

	shedThreshold
	// reserved is how many lanes are kept from runs that would block the family; see holdsBack.
	reserved float64

	alone  float64 // the part of its queries that the lanes would answer if it were alone, (0, 1]
	looked int     // scratch: how many of its queries are in the round
}

// minArrivals is how many queries a share needs to count in full: that one of fewer is lost is
// chance. Chosen: one of 20 is 5 %, several times the share that a QoS target of 99 % lets be late.
const minArrivals = 20

// size is the number of arrivals to which a loss is compared.
func (d *shardDemand) size() float64 { return max(d.arrivals, minArrivals) }

// servedShare is the part that the family has got of what it would reach alone.
func (d *shardDemand) servedShare() float64 { return d.shareAfter(0) }

// shareAfter is share if so many more queries had been answered.
func (d *shardDemand) shareAfter(more int) float64 {
	return (d.size() - d.lost + float64(more)) / (d.size() * d.alone)
}

// demandOf returns the demand of a family at s, which begins if there is none.
func (s *shard) demandOf(f *family, k flowKey) *shardDemand {
	if d := s.knownDemand(f, k); d != nil {
		return d
	}
	var free *shardDemand
	for _, d := range s.demands {
		if free == nil && d.decayTo(s.m) < 1e-3 && !slices.ContainsFunc(s.classes,
			func(k *queryClass) bool { return k.demand == d && k.live.Len() > 0 }) {
			free = d
		}
	}
	if free == nil {
		free = &shardDemand{}
		s.demands = append(s.demands, free)
	}
	*free = shardDemand{family: f, flowKey: k, since: s.m.now, alone: 1,
		shedThreshold: shedThreshold{threshold: 1}}
	return free
}

// knownDemand returns the demand of a family at s, nil if there is none.
func (s *shard) knownDemand(f *family, k flowKey) *shardDemand {
	for _, d := range s.demands {
		if d.family == f && d.flowKey == k {
			return d
		}
	}
	return nil
}

// decayTo brings the counts up to now, and returns that of the arrivals.
func (d *shardDemand) decayTo(m *Matcher) float64 {
	if m.now > d.since {
		if by := (d.since - m.now) / m.spareOver; by != m.decayedBy {
			m.decayedBy, m.decayKeeps = by, math.Exp(by)
		}
		keep := m.decayKeeps
		d.arrivals, d.lost, d.cost = d.arrivals*keep, d.lost*keep, d.cost*keep
		d.maxCost, d.since = d.maxCost*keep, m.now
	}
	return d.arrivals
}

// isOutsideDemand reports whether q does not count in the demand of its family. Of a query that was
// split only the whole does, because its gateway gets one answer, and of what no lane can answer in
// time nothing, because nothing can be done for it.
func (s *shard) isOutsideDemand(q *query) bool {
	return q.part || len(s.lanes) == 0 || q.least > q.family.target
}

// noteArrival counts a query that has come to wait at s.
func (s *shard) noteArrival(q *query) {
	if s.isOutsideDemand(q) {
		return
	}
	d := s.demandOf(q.family, q.flowKey)
	d.decayTo(s.m)
	cost := s.minCost(q)
	d.arrivals++
	d.cost += cost
	q.cost, q.lost = cost*blurFactor(q.id), q.isLate
	d.maxCost = max(d.maxCost, q.cost)
	d.reserved = max(0, d.reserved-reserveReturn/d.size())
}

// noteStart counts a query that is started in time.
func (s *shard) noteStart(q *query) {
	if !s.isOutsideDemand(q) {
		s.demandOf(q.family, q.flowKey).admitMore(q)
	}
}

// adaptToLoss counts a query that cannot be started in time any more.
func (s *shard) adaptToLoss(q *query) {
	if s.isOutsideDemand(q) {
		return
	}
	d := s.countLost(q)
	switch behind := s.isBehind(d); {
	case d.shedsQuery(q):
		if behind { // other families have the lanes that d lacks
			d.admitMore(q)
		}
	case !s.adaptReservedLanes(q, d) && !behind:
		d.admitLess()
	}
}

// fairWithin is the difference of shares above which a family counts as behind another. Chosen:
// less is noise.
const fairWithin = 0.02

// isBehind reports whether another family has got a larger share at s than that of d.
func (s *shard) isBehind(d *shardDemand) bool {
	share := d.servedShare() + fairWithin
	return slices.ContainsFunc(s.demands, func(o *shardDemand) bool {
		return o.flowKey == d.flowKey && o.decayTo(s.m) >= minArrivals && o.servedShare() > share
	})
}

// noteMiss counts a query that was started in time and answered late.
func (s *shard) noteMiss(q *query) {
	if s.isOutsideDemand(q) {
		return
	}
	s.countLost(q).admitLess()
}

// countLost counts q as lost in the demand of its family, which it returns.
func (s *shard) countLost(q *query) *shardDemand {
	d := s.demandOf(q.family, q.flowKey)
	d.decayTo(s.m)
	d.lost, q.lost = min(d.lost+1, d.arrivals), true
	return d
}

// minCost is what the cheapest time costs in which some lane of s answers q, 0 if none does.
func (s *shard) minCost(q *query) float64 {
	least, seen := math.Inf(1), (*lane)(nil)
	for _, l := range s.lanes {
		if !l.isUsable() || seen != nil && seen.typ == l.typ && seen.set == l.set {
			continue
		}
		seen = l
		for _, v := range q.allowedVariants() {
			if t := l.latencyTable(v.model); t != nil {
				least = min(least, l.timePrice(v.model)*t.mean[q.batch])
			}
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// decayDemand brings the demand of a class with live queries up to now. Alone, the family could
// have all the time of the lanes that serve it. They would lose its largest queries, so they answer
// more of its queries than their time is a part of what all take: with the published batch sizes of
// rm2 .86 and .75 where it is .74 and .57, near the square root.
func (h *horizon) decayDemand(s *shard, k *queryClass) {
	d := k.demand
	d.decayTo(s.m)
	if d.alone = 1; len(s.demands) == 1 {
		return
	}
	capacity := 0.0
	for _, g := range h.servingGroups(k) {
		grp := &h.groups[g]
		model, _ := grp.lanes[0].fastestVariant(k.live.First())
		capacity += float64(len(grp.lanes)) * grp.lanes[0].timePrice(model)
	}
	if capacity *= s.m.spareOver; capacity > 0 && d.cost > capacity {
		d.alone = math.Sqrt(capacity / d.cost)
	}
}

// byShare iterates over the live queries of a flow, nil for all: those first whose family has got the
// smallest share, each counting as answered for the next, and of a family the oldest first, at most
// so many of each class. The loop must not change which queries are live.
func (s *shard) byShare(most int, of *flow) iter.Seq[*query] {
	return func(yield func(*query) bool) {
		order := s.order[:0]
		for _, k := range s.classes {
			if k.live.Len() > 0 && (of == nil || k.flowKey == of.flowKey) {
				k.next, k.looked, k.demand.looked = k.live.First(), 0, 0
				order.push(classShare{k.demand.servedShare(), k})
			}
		}
		s.order = order
		for len(order) > 0 {
			k := order[0].class
			// The share is of before if another class of the family was looked at since.
			if now := k.demand.shareAfter(k.demand.looked); now != order[0].share {
				order[0].share = now
				order.sinkFirst()
				continue
			}
			q := k.next
			k.next, k.looked = q.inClass.Next(), k.looked+1
			k.demand.looked++
			if k.next != nil && k.looked < most {
				order[0].share = k.demand.shareAfter(k.demand.looked)
			} else {
				last := len(order) - 1
				order[0] = order[last]
				order = order[:last]
			}
			order.sinkFirst()
			if !yield(q) {
				return
			}
		}
	}
}

// A classShare is a class whose next query is to be looked at, and the share of its family, which
// may have risen since.
type classShare struct {
	share float64
	class *queryClass
}

func (a *classShare) isBefore(b *classShare) bool {
	return a.share < b.share || a.share == b.share && byArrival(a.class.next, b.class.next) < 0
}

// classesByShare is a binary heap, the class to look at first.
type classesByShare []classShare

func (h *classesByShare) push(k classShare) {
	*h = append(*h, k)
	all := *h
	for i := len(all) - 1; i > 0 && all[i].isBefore(&all[(i-1)/2]); i = (i - 1) / 2 {
		all[i], all[(i-1)/2] = all[(i-1)/2], all[i]
	}
}

// sinkFirst moves the first to its place.
func (h classesByShare) sinkFirst() {
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].isBefore(&h[c]) {
			c++
		}
		if !h[c].isBefore(&h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}
