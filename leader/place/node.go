package place

import "math"

// A Tenant is one of the two models of an agent, as the last period found it.
type Tenant struct {
	Profile       *Profile
	Workers, Ways int
	Traffic       float64 // queries/s that arrived
	Tail          float64 // tail latency by QoS target; 1 is at the target
	// Calm is how many periods in a row, with this one, fewer workers would have done. Adjust keeps
	// it.
	Calm int
}

// Tail latencies by QoS target: a tenant is late above tight, and Adjust takes no worker of one at
// or above slack. slack is chosen, the paper has no number.
const (
	tight = 1.0
	slack = 0.8
)

// patience is after how many calm periods a tenant loses a worker. Chosen: a pause of one or two
// periods between bursts takes no worker away, and three seconds waste little.
const patience = 3

// Adjust gives each of two tenants its workers and ways for the next period: Hera's Algorithm 3. A
// tenant gets the fewest workers that serve its traffic times its urgency, which is its tail where
// that is above the target, if it has fewer; the paper waits until the tail is beyond the target or
// far below it. One far below loses one worker after three periods in which fewer would do. Each
// keeps one at least. If they want more than the cores, the split that loses the fewest of the
// queries that arrive, each weighted by its urgency, is taken, and of such splits the one that
// leaves most for what waits. When workers have changed, the ways are split anew so that both
// models' queries/s together are the most.
func (m Machine) Adjust(tenants [2]Tenant) (next [2]Tenant, changed bool) {
	next = tenants
	var want [2]int
	for i := range next {
		want[i] = max(1, m.wantedWorkers(&next[i]))
	}
	if want[0]+want[1] > m.Cores {
		want = m.divideCores(tenants, want)
	}
	for i := range next {
		changed = changed || next[i].Workers != want[i]
		next[i].Workers = want[i]
	}
	if changed && m.Ways >= 2 {
		m.splitWays(&next)
	}
	return next, changed
}

// urgencyFactor is by how much a tenant's traffic is raised, for what waits from before.
func (t *Tenant) urgencyFactor() float64 { return max(1, t.Tail) }

// rateAt is what a tenant serves with so many workers, in its ways.
func (t *Tenant) rateAt(workers int) float64 {
	by := t.Profile.QPS[min(max(0, workers), len(t.Profile.QPS)-1)]
	return by[min(max(0, t.Ways), len(by)-1)]
}

// wantedWorkers is how many workers a tenant should have if it were alone. It keeps Calm.
func (m Machine) wantedWorkers(t *Tenant) int {
	traffic := t.urgencyFactor() * t.Traffic
	fewest, most := 0, 1
	for w := 1; w < m.Cores; w++ {
		if t.rateAt(w) > t.rateAt(most) {
			most = w
		}
		if fewest == 0 && t.rateAt(w) >= traffic {
			fewest = w
		}
	}
	if fewest == 0 { // none will do: the fewest that serve the most
		fewest = most
	}
	if t.Tail > tight || fewest >= t.Workers || !(t.Tail < slack) {
		t.Calm = 0
		return max(t.Workers, fewest)
	}
	if t.Calm++; t.Calm < patience {
		return t.Workers
	}
	t.Calm = 0
	return t.Workers - 1
}

// divideCores splits the cores between tenants that want more than there are.
func (m Machine) divideCores(tenants [2]Tenant, want [2]int) [2]int {
	best, least := [2]int{1, 1}, [3]float64{math.Inf(1)}
	for w := 1; w < m.Cores; w++ {
		split := [2]int{w, m.Cores - w}
		var lost [3]float64 // of what arrives, then of what waits too, then by how far it moves
		for i := range split {
			t := &tenants[i]
			has := t.rateAt(min(split[i], want[i]))
			lost[0] += t.urgencyFactor() * max(0, t.Traffic-has)
			lost[1] += t.urgencyFactor() * max(0, t.urgencyFactor()*t.Traffic-has)
		}
		lost[2] = math.Abs(float64(w - tenants[0].Workers))
		for i, x := range lost {
			if x < least[i]-1e-9 {
				best, least = split, lost
			}
			if math.Abs(x-least[i]) > 1e-9 {
				break
			}
		}
	}
	return best
}

// splitWays splits the ways; of equally good splits it takes the one nearest to the present one.
func (m Machine) splitWays(tenants *[2]Tenant) {
	a, b := &tenants[0], &tenants[1]
	now := a.Ways
	best, most := 1, -1.0
	for i := 1; i < m.Ways; i++ {
		qps := a.Profile.QPS[a.Workers][i] + b.Profile.QPS[b.Workers][m.Ways-i]
		near := math.Abs(float64(i-now)) < math.Abs(float64(best-now))
		if qps > most+1e-9 || qps > most-1e-9 && near {
			best, most = i, max(most, qps)
		}
	}
	a.Ways, b.Ways = best, m.Ways-best
}
