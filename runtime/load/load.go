// Package load measures how busy lanes are, in the terms in which balancers of other projects ask
// for it (Open Request Cost Aggregation, ORCA). In come totals, out come shares and rates. It is
// pure: agents and the simulator measure by the same code.
package load

import (
	"math"
	"time"
)

// window is the time constant of the averages. Rates over less would follow single queries, whose
// execution times differ by a factor of a hundred.
const window = 10 * time.Second

// backlog is the time of waiting that counts as one more busy lane.
const backlog = time.Second

// Totals are the number of a server's lanes, and sums over their runs since its start.
type Totals struct {
	Lanes int
	// Busy is the sum of the times in which a lane ran a query.
	Busy time.Duration
	// Answered and Failed count queries by how they ended. Queries that failed by their client's
	// fault are in neither.
	Answered, Failed uint64
}

// A Report says how busy a server is.
type Report struct {
	// Busy is the share of the time in which its lanes were busy, in 0..1.
	Busy float64
	// Utilization is Busy and 1 for each second until a lane is free for one more query. So it is
	// above 1 where queries wait.
	Utilization float64
	// QPS and EPS are queries and errors per second. QPS counts both answers and errors.
	QPS, EPS float64
}

// A Meter makes Reports of averages over about the last ten seconds, newer ones counting more. Its
// zero value begins at time 0 with zero Totals.
//
// It is not safe for concurrent use.
type Meter struct {
	at   time.Duration
	last Totals
	// averages with weights that sum up to weight, which is below 1 after a short time
	busy, qps, eps, weight float64
}

// Measure takes the totals at a time, which does not decrease, and the time until a lane is free
// for one more query.
func (m *Meter) Measure(now time.Duration, t Totals, free time.Duration) Report {
	if passed := now - m.at; passed > 0 {
		part := -math.Expm1(-float64(passed) / float64(window))
		average := func(of *float64, x float64) { *of += (x - *of) * part }
		failed := float64(t.Failed - m.last.Failed)
		average(&m.eps, failed/passed.Seconds())
		average(&m.qps, (float64(t.Answered-m.last.Answered)+failed)/passed.Seconds())
		average(&m.busy, float64(t.Busy-m.last.Busy)/float64(passed)/float64(max(1, t.Lanes)))
		average(&m.weight, 1)
		m.at, m.last = now, t
	}
	if m.weight == 0 {
		return Report{}
	}
	r := Report{
		Busy: min(max(0, m.busy/m.weight), 1), QPS: m.qps / m.weight, EPS: m.eps / m.weight,
	}
	r.Utilization = r.Busy + max(0, free).Seconds()/backlog.Seconds()
	return r
}
