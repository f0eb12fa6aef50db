package canary

// A Release says which version of a model answers the queries that name none. The zero value means
// that nothing was released: the newest version answers.
type Release struct {
	// Current is the version that answers.
	Current int64
	// Canary is a version that answers a Share of the queries in Current's place; 0: there is none.
	// One whose Share is 0 was taken back: it answers only while there is no other version.
	Canary int64
	Share  float64 // in [0, 1)
}

// OnTrial reports whether a canary answers queries.
func (r Release) OnTrial() bool { return r.Canary != 0 && r.Share > 0 }

// Versions are those that are to serve, the current one first.
func (r Release) Versions() []int64 {
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
func (r Release) Prefer(a, b int64) int64 {
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
// second attempt, another leader or none change nothing. A gateway's queries, in their order, fall
// on the multiples of the golden ratio in [0, 1), so that of n queries in a row the canary gets
// share x n, give or take a few, where a random choice would be off by the square root of that.
func (r Release) Takes(gateway, sequence uint64) bool {
	if !r.OnTrial() {
		return false
	}
	const golden = 0x9E3779B97F4A7C15 // the golden ratio's fraction, x 2^64
	place := sequence/Numbering*golden + gateway
	return float64(place>>11)/(1<<53) < r.Share
}

// Version returns the version that answers a query which names none: the canary, if the query is
// its and serves says that the canary serves, else other, which is the best by Prefer.
func (r Release) Version(gateway, sequence uint64, other int64,
	serves func(version int64) bool) int64 {
	if r.Takes(gateway, sequence) && serves(r.Canary) {
		return r.Canary
	}
	return other
}
