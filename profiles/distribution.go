package profiles

// A Share is the part of all queries that has one batch size.
type Share struct {
	BatchSize int     // >= 1
	Share     float64 // in (0, 1]
}

// A Distribution is the distribution of batch sizes of one model's queries. Batch sizes ascend, and
// the shares add up to 1. Nil means that it is not known.
type Distribution []Share

// Mean returns the mean batch size; 0 if the distribution is empty.
func (d Distribution) Mean() float64 {
	var mean float64
	for _, s := range d {
		mean += s.Share * float64(s.BatchSize)
	}
	return mean
}
