package balancers

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// The parameters of Prequal, which are those of the paper's baseline.
const (
	// maxPooled is how many answers a client keeps, m, if there are at least twice as many
	// servers.
	maxPooled = 16
	// probeRate is how many probes a query brings, and removeRate how many answers it removes.
	probeRate, removeRate = 3, 1
	// reuseMargin is delta: by how much more answers are to arrive than be used up.
	reuseMargin = 1.0
	// minPool is the number of answers below which a server is drawn at random.
	minPool = 2
	// oldest is the age at which an answer is dropped.
	oldest = time.Second
	// recentAnswers is how many answers the distribution of requests in flight is taken from. The
	// paper does not say how many.
	recentAnswers = 128
)

// hotQuantile is Q_RIF: a server with more requests in flight than this quantile is hot.
var hotQuantile = math.Pow(2, -0.25)

// An ProbeAnswer is a server's answer to a probe of Prequal.
type ProbeAnswer struct {
	InFlight int           // requests that have arrived and not ended
	Latency  time.Duration // the median of recent latencies with about as many in flight
}

// A Prequal is one client's state.
type Prequal struct {
	servers int
	size    int // of the pool at most
	rng     *rand.Rand
	pool    []pooledAnswer // in the order of arrival
	recent  []int          // requests in flight by the last answers, a ring
	next    int            // index in recent
	worst   bool           // the next answer removed is the worst, not the oldest
}

// A pooledAnswer is an answer in the pool.
type pooledAnswer struct {
	ProbeAnswer
	server int
	at     time.Duration
	uses   int // how often it may still be used
}

// NewPrequal returns the state of a client of the given number of servers. The paper has many more
// servers than answers in the pool. Of few servers the pool holds half: with more, its formula for
// how often an answer may be used has no result, and less is served.
func NewPrequal(servers int, seed uint64) *Prequal {
	return &Prequal{
		servers: servers, size: min(maxPooled, max(minPool, servers/2)),
		rng: rand.New(rand.NewPCG(seed, 3)),
	}
}

// Pick chooses the server of a query that arrives now, and the servers to probe meanwhile. The
// probes are valid until the next call.
func (p *Prequal) Pick(now time.Duration) (server int, probes []int) {
	p.pool = slices.DeleteFunc(p.pool, func(a pooledAnswer) bool { return now-a.at >= oldest })
	server = p.rng.IntN(p.servers)
	if len(p.pool) >= minPool {
		best, _ := p.rank()
		a := &p.pool[best]
		server = a.server
		a.InFlight++ // the query that it gets now
		if a.uses--; a.uses <= 0 {
			p.remove(best)
		}
	}
	for range removeRate {
		p.shrink()
	}
	probes = p.rng.Perm(p.servers)
	return server, probes[:min(probeRate, p.servers)]
}

// rank returns the indices of the best and of the worst answer in the pool, which is not empty.
// Cold answers are better than hot ones, cold ones by latency, hot ones by requests in flight.
func (p *Prequal) rank() (best, worst int) {
	limit := p.limit()
	order := func(a, b *pooledAnswer) int {
		hotA, hotB := a.InFlight > limit, b.InFlight > limit
		switch {
		case hotA && hotB:
			return cmp.Compare(a.InFlight, b.InFlight)
		case hotA:
			return 1
		case hotB:
			return -1
		}
		return cmp.Compare(a.Latency, b.Latency)
	}
	for i := range p.pool {
		if order(&p.pool[i], &p.pool[best]) < 0 {
			best = i
		}
		if order(&p.pool[i], &p.pool[worst]) >= 0 {
			worst = i
		}
	}
	return best, worst
}

// limit is the quantile of requests in flight above which a server is hot.
func (p *Prequal) limit() int {
	sorted := slices.Sorted(slices.Values(p.recent))
	return sorted[min(int(hotQuantile*float64(len(sorted))), len(sorted)-1)]
}

// shrink removes the oldest or the worst answer, in turn.
func (p *Prequal) shrink() {
	if len(p.pool) == 0 {
		return
	}
	i := 0
	if p.worst {
		_, i = p.rank()
	}
	p.worst = !p.worst
	p.remove(i)
}

func (p *Prequal) remove(i int) { p.pool = slices.Delete(p.pool, i, i+1) }

// Probed takes a server's answer, which replaces an earlier one of the same server.
func (p *Prequal) Probed(now time.Duration, server int, a ProbeAnswer) {
	if len(p.recent) < recentAnswers {
		p.recent = append(p.recent, a.InFlight)
	} else {
		p.recent[p.next] = a.InFlight
		p.next = (p.next + 1) % recentAnswers
	}
	p.pool = slices.DeleteFunc(p.pool, func(old pooledAnswer) bool { return old.server == server })
	if len(p.pool) == p.size {
		p.remove(0)
	}
	p.pool = append(p.pool, pooledAnswer{ProbeAnswer: a, server: server, at: now, uses: p.uses()})
}

// uses draws how often an answer may be used, b_reuse on average.
func (p *Prequal) uses() int {
	arriving := (1-float64(p.size)/float64(p.servers))*probeRate - removeRate
	if arriving <= 0 {
		return math.MaxInt
	}
	uses := max(1, (1+reuseMargin)/arriving)
	whole := math.Floor(uses)
	if p.rng.Float64() < uses-whole {
		whole++
	}
	return int(whole)
}

// latencies is how many latencies a [ProbedServer] keeps for each number of requests in flight. The
// paper does not say how many.
const latencies = 16

// A ProbedServer is what a server does for Prequal: it keeps latencies by how many requests were in
// flight. Its zero value is ready.
type ProbedServer struct {
	took [][]time.Duration // rings, by requests in flight on arrival
	next []int             // indices in took's rings
}

// Ended takes the latency of a request that found inFlight others on arrival.
func (s *ProbedServer) Ended(inFlight int, took time.Duration) {
	for len(s.took) <= inFlight {
		s.took, s.next = append(s.took, nil), append(s.next, 0)
	}
	if ring := s.took[inFlight]; len(ring) == latencies {
		ring[s.next[inFlight]] = took
		s.next[inFlight] = (s.next[inFlight] + 1) % latencies
		return
	}
	s.took[inFlight] = append(s.took[inFlight], took)
}

// Answer answers a probe while so many requests are in flight. Its latency is the median of those
// that found as many, or as near to that as there were any; 0 before the first has ended.
func (s *ProbedServer) Answer(inFlight int) ProbeAnswer {
	a := ProbeAnswer{InFlight: inFlight}
	for distance := range max(len(s.took), inFlight) + 1 {
		for _, n := range [2]int{inFlight - distance, inFlight + distance} {
			if n < 0 || n >= len(s.took) || len(s.took[n]) == 0 {
				continue
			}
			sorted := slices.Sorted(slices.Values(s.took[n]))
			a.Latency = sorted[len(sorted)/2]
			return a
		}
	}
	return a
}
