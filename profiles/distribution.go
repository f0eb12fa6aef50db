package profiles

// A Share is the part of all queries that has one batch size.
type Share struct {
	BatchSize int     // >= 1
	Share     float64 // of all queries, in (0, 1]
}

// A Distribution is the distribution of batch sizes of one model's queries:
// ascending batch sizes, shares that add up to 1. Nil is no knowledge.
type Distribution []Share

// Mean returns the mean batch size, 0 of an empty distribution.
func (d Distribution) Mean() float64 {
	var mean float64
	for _, s := range d {
		mean += s.Share * float64(s.BatchSize)
	}
	return mean
}
