package match

// While lanes are scarce, some queries are lost whatever is done. Most are answered if those are
// lost that take the most of scarce time. Were it left to chance, all queries would wait until
// their last moment, so what takes a little longer than it is told to take would be late.
//
// So horizon sheds the queries of a family whose cost is above a threshold: it plans no lane for
// them, and starts them only on a lane that would idle. The threshold falls with each query below
// it that is lost, and rises with each that is started, until about one of sixty is lost: a
// stochastic approximation (Robbins and Monro, Annals of Mathematical Statistics 22, 1951), as are
// the margins below and the lanes of reserve.go. Near the limit and below it fewer are lost, and
// nothing is shed.
type shedThreshold struct {
	// threshold is the largest cost of queries that are not shed, as a part of maxCost, in (0, 1];
	// 1 sheds none.
	threshold float64
	maxCost   float64 // the largest blurred cost of a query in the last time
}

const (
	// The threshold falls by shedStep with each query that is lost: by half with 35. It rises by
	// shedStep x shedLoss with each that is started, so in balance the share shedLoss is lost. With
	// less, too much is shed where many queries cost the same: at .01, 1 % fewer answers for rm2 at
	// three times the limit. With .03 queries wait for some 10 % longer.
	shedStep = 0.02
	shedLoss = 0.015
	// Nothing is shed until more than minShedLoss of the queries are lost: at the limit, where 1 %
	// may be late, shedding in each burst costs 1 % of what is served. With .05, 2 points more are
	// late at 1.2 times the limit where run times vary by half of their mean.
	minShedLoss = 0.025
)

// blurFactor is the factor in [1, 1 + maxBlur) by which a query's cost is blurred before it is
// compared to the threshold. Where many queries cost the same, the threshold would else shed all of
// them or none.
func blurFactor(id QueryID) float64 {
	const maxBlur = 0.1
	x := id.Gateway*0x9e3779b97f4a7c15 + id.Sequence // SplitMix64
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return 1 + maxBlur*float64(x>>11)/(1<<53)
}

// shedsQuery reports whether q costs too much for the scarce time of the lanes.
func (d *shardDemand) shedsQuery(q *query) bool {
	return d.threshold < 1 && q.cost > d.threshold*d.maxCost && d.lacksLanes()
}

// lacksLanes reports whether lanes are scarce for the family.
func (d *shardDemand) lacksLanes() bool { return d.lost > minShedLoss*d.size() }

// admitLess lowers the threshold, because a query below it was lost.
func (d *shardDemand) admitLess() { d.threshold *= 1 - shedStep }

// admitMore raises the threshold, because q is started in time. If q is above it, lanes idled.
func (d *shardDemand) admitMore(q *query) {
	step := shedStep
	if !d.shedsQuery(q) {
		step *= shedLoss
	}
	d.threshold = min(1, d.threshold*(1+step))
}

// A margin is what queries of a model need on a type beside the safe latency, because they were
// answered late although they were to be in time: the latencies are told too short, or messages
// take longer at times. It is in ms, by class of latency: one class would shed large queries for
// the sake of small ones.
type margin [marginClasses]float64

const (
	// The classes are quarters of the QoS target. A larger latency is in the last.
	marginClasses = 4
	// A margin grows by marginStep targets with each query that is late, up to maxMargin. It
	// shrinks by marginStep x marginMisses with each in time, so in balance the share marginMisses
	// is late. That share is what a QoS target of 99 % leaves. The other two are chosen: five late
	// queries add a tenth of the target, and half of the target is always left to run.
	marginStep, marginMisses, maxMargin = 0.02, 0.01, 0.5
)

// marginFor returns the margin of queries with the given mean latency and target.
func (m *margin) marginFor(mean, target float64) *float64 {
	class := marginClasses - 1
	if quarters := marginClasses * mean / target; quarters < marginClasses { // it may be infinite
		class = int(quarters)
	}
	return &m[class]
}

// safeLatencyMs is the latency in ms that a query of the model does not exceed on t with the safe
// quantile, and its margin.
func (t *instanceType) safeLatencyMs(model int, q *query) float64 {
	table := t.tables[model]
	return table.safe[q.batch] + *t.margins[model].marginFor(table.mean[q.batch], q.family.target)
}

// adaptMargin learns from the answer to q, which l has run, unless q was started late.
func (l *lane) adaptMargin(q *query) {
	if q.lost || q.isLate {
		return
	}
	target := q.family.target
	late := l.m.now > q.arrival+target
	if late {
		l.shard.noteMiss(q)
	}
	i := l.findReservation(q.id, q.attempt)
	if i < 0 || l.held[i].latency == 0 || l.held[i].joined ||
		i+1 < len(l.held) && l.held[i+1].run == l.held[i].run {
		return // the latency is not that of a run of q alone
	}
	margin := l.typ.margins[q.model].marginFor(l.held[i].latency, target)
	if late {
		*margin = min(maxMargin*target, *margin+marginStep*target)
	} else {
		*margin = max(0, *margin-marginStep*marginMisses*target)
	}
}
