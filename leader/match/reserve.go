package match

// A run is not interrupted. So where a model with a long latency and one with a short target share
// lanes, the long runs may hold all lanes for longer than the short target, also far below the
// limit. Horizon then keeps lanes from the long runs: as many as it takes until the short model
// loses few queries, or until the long one, whose lanes are fewer now, has got no more than its
// share either.

const (
	// With each query that is lost because lanes are blocked, reserveGain lanes, as a part of the
	// family's arrivals of the last time, are reserved: one for 1 % of them. It is maxReserveStep
	// at most, since of few queries one may be lost by chance. The arrivals of that time give back
	// reserveReturn lanes, so in balance a share of .2 % is lost. The three are chosen: with them
	// 1.4 % are late where 15 (EDF) to 26 % (kairos) were, at .8 of the limit with targets of 5 ms
	// and 2 s.
	reserveGain, maxReserveStep, reserveReturn = 100, 0.5, 0.2
)

// mayMissTargetBehind reports whether a run of so many ms may make a query of f late that comes
// during it.
func (f *family) mayMissTargetBehind(ms float64) bool { return ms > f.target/2 }

// adaptReservedLanes adapts the reserved lanes to the loss of q, of the demand d. It reports
// whether q was lost because runs of families that have got a larger share blocked its lanes.
func (s *shard) adaptReservedLanes(q *query, d *shardDemand) (blocked bool) {
	if len(s.demands) == 1 {
		return false
	}
	step, share := min(maxReserveStep, reserveGain/d.size()), d.servedShare()
	for _, o := range s.demands {
		if o != d && o.servedShare() > share {
			o.reserved = max(0, o.reserved-step)
		}
	}
	lanes := 0
	for _, l := range s.lanes {
		if !l.isUsable() || !l.canServe(q) {
			continue
		}
		lanes++
		for i := range l.held {
			if r := &l.held[i]; !blocked && r.family != nil && r.family != q.family &&
				q.family.mayMissTargetBehind(r.latency) {
				o := s.knownDemand(r.family, r.flow)
				blocked = o == nil || o.servedShare() > share
			}
		}
	}
	if blocked {
		d.reserved = min(d.reserved+step, float64(lanes-1))
	}
	return blocked
}

// holdsBack reports whether l must not run q for so many ms, because too few lanes would be left
// that another family does not have to wait for.
func (s *shard) holdsBack(q *query, l *lane, ms float64) bool {
	for _, d := range s.demands {
		reserved := int(d.reserved + 0.5)
		if reserved == 0 || d.family == q.family || !d.family.mayMissTargetBehind(ms) ||
			!l.servesFamily(d.family) {
			continue
		}
		others, free := 0, 0
		for _, o := range s.lanes {
			if o != l && o.isUsable() && o.servesFamily(d.family) {
				others++
				if !d.family.mayMissTargetBehind(o.freeAt - s.m.now) {
					free++
				}
			}
		}
		if free < min(reserved, others) { // else no run could ever start where lanes are lost
			return true
		}
	}
	return false
}

// servesFamily reports whether l serves a variant of f.
func (l *lane) servesFamily(f *family) bool {
	for _, v := range f.variants {
		if l.latencyTable(v.model) != nil {
			return true
		}
	}
	return false
}
