package canary

// A Rollout says which version of a model answers the queries that name none. The zero value means
// that nothing was released: the newest version answers.
type Rollout struct {
	// Current is the version that answers.
	Current int64
	// Canary is a version that answers a Share of the queries in Current's place; 0: there is none.
	// A canary whose Share is 0 was rolled back: it answers only while no other version can.
	Canary int64
	Share  float64 // in [0, 1)
}

// RolloutOf is what a release of the protocol, a control.Release, says of the versions.
func RolloutOf(r interface {
	GetCurrent() int64
	GetCanary() int64
	GetShare() float64
}) Rollout {
	return Rollout{Current: r.GetCurrent(), Canary: r.GetCanary(), Share: r.GetShare()}
}

// OnTrial reports whether a canary answers queries.
func (r Rollout) OnTrial() bool { return r.Canary != 0 && r.Share > 0 }

// Versions are the versions that agents are to serve, the current one first.
func (r Rollout) Versions() []int64 {
	switch {
	case r.Current == 0:
		return nil
	case r.OnTrial():
		return []int64{r.Current, r.Canary}
	}
	return []int64{r.Current}
}

// Prefer returns which of two versions that serve answers a query that is not for the canary: the
// current version before any other, the canary after all others, of two others the newer. A version
// that is 0 does not serve.
func (r Rollout) Prefer(a, b int64) int64 {
	rank := func(v int64) int {
		switch {
		case v == 0:
			return 0
		case v == r.Canary:
			return 1
		case v == r.Current:
			return 3
		}
		return 2
	}
	if x, y := rank(a), rank(b); x > y || x == y && a > b {
		return a
	}
	return b
}

// Numbering is the distance between the sequence numbers of a gateway's queries; the numbers
// between are those of a query's parts.
const Numbering = 4

// Takes reports whether the canary answers a query, of which it takes the gateway's id and the
// query's sequence number there. The same query goes the same way whoever decides, so that a
// second attempt, another leader or none change nothing; agents that chose by the golden ratio's
// multiples, as all did at first, choose other queries but the same share. A hash decides: of
// queries that have something in common, such as each hundredth one of a gateway, the canary gets
// its share as by independent draws. Any regular choice falls in step with some regular client.
func (r Rollout) Takes(gateway, sequence uint64) bool {
	if !r.OnTrial() {
		return false
	}
	const golden = 0x9E3779B97F4A7C15 // odd, and its bits look random: SplitMix64's step
	place := mixBits(mixBits(gateway) + sequence/Numbering*golden)
	return float64(place>>11)/(1<<53) < r.Share
}

// mixBits returns a number of which each bit depends on all bits of x: the last step of SplitMix64
// (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). What it
// returns decides which queries go to a canary, in all agents and clients: it must not change.
func mixBits(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Version returns the version that answers a query which names none: the canary, if the query is
// its and serves says that the canary serves, else other, which is the best by Prefer.
func (r Rollout) Version(gateway, sequence uint64, other int64,
	serves func(version int64) bool) int64 {
	if r.Takes(gateway, sequence) && serves(r.Canary) {
		return r.Canary
	}
	return other
}
