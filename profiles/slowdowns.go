package profiles

import "strings"

// Slowdowns say how much longer models take beside others: Slowdowns[a][b] is by what a's latencies
// are multiplied while b runs on other lanes of the machine. Where nothing is said it is 1.
type Slowdowns map[string]map[string]float64

// factorOf is the factor of a model's latencies beside others, written as in [Key.Beside]: each
// adds what it adds alone.
func (s Slowdowns) factorOf(model, beside string) float64 {
	factor := 1.0
	beside, _, _ = strings.Cut(beside, "/")
	for _, other := range strings.Split(beside, "+") {
		if by := s[model][other]; by > 0 {
			factor += by - 1
		}
	}
	return max(factor, 1)
}

// SetSlowdowns says from what profiles of models beside others start. The book keeps them: the
// caller must not change them afterwards.
func (b *Book) SetSlowdowns(s Slowdowns) { b.slow = s }
