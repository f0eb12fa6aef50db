// Package accuracy says what the accuracies of a family's variants mean: which of them are too
// inaccurate to answer for it. Agents decide by it what they announce, gateways and leaders whom they
// ask, and the commands that make variants what they warn of.
package accuracy

import "fmt"

// MinRatio is the accuracy that a variant needs to answer for its family, as a share of the best
// variant's. Half as accurate as the best means, with the scores that Muster measures, that half of
// what the best knows beyond guessing is lost. A fleet makes answers less accurate in an overload
// without asking anybody, and nobody who asked for the family wants that. Of the variants of the zoo
// the coarsest useful one (RM2 with half of its lookups) has .59 of its model's accuracy, and the
// spoilt one (WND of rank 64) .07: any ratio between .1 and .55 tells them apart.
const MinRatio = .5

// Known is an accuracy that counts as 1, that of the best, if it is 0, which means unknown.
func Known(accuracy float64) float64 {
	if accuracy > 0 {
		return accuracy
	}
	return 1
}

// Best holds the accuracy of the best variant of each family, by the family's name.
type Best map[string]float64

// Add takes a variant of a family with its accuracy, which is 0 if it is unknown.
func (b Best) Add(family string, accuracy float64) {
	b[family] = max(b[family], Known(accuracy))
}

// Excludes reports whether a variant with this accuracy, 0 if it is unknown, is too inaccurate to
// answer for the family.
func (b Best) Excludes(family string, accuracy float64) bool {
	return Known(accuracy) < MinRatio*b[family]
}

// Why says why a variant with this accuracy does not answer for the family, and what to do; empty if
// it may answer.
func (b Best) Why(family string, accuracy float64) string {
	if !b.Excludes(family, accuracy) {
		return ""
	}
	return fmt.Sprintf("too inaccurate for family %q: its accuracy is %.4g, less than %v of the best "+
		"one's, %.4g; make a more accurate variant, or remove the key family from its model.yaml",
		family, accuracy, MinRatio, b[family])
}
