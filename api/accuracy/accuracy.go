// Package accuracy says what the accuracies of a family's variants mean: which of them are too
// inaccurate to answer for it. Agents decide by it what they announce, gateways and leaders whom they
// ask, and the commands that make variants what they warn of.
package accuracy

import "fmt"

// MinRatio is the accuracy that a variant needs to answer for its family where nobody has said one,
// as a share of the best variant's. A fleet makes answers less accurate in an overload without asking
// anybody, and nobody who asked for the family wants that by much. Of the variants of the zoo those
// in 8 and 4 bits and in FP16 keep .97 of their model's accuracy and more; below .8 are the spoilt
// ones and RM2 with half of its lookups (.59). Chosen; any ratio between .6 and .95 tells them apart.
const MinRatio = .8

// Known is an accuracy that counts as 1, that of the best, if it is 0, which means unknown.
func Known(accuracy float64) float64 {
	if accuracy > 0 {
		return accuracy
	}
	return 1
}

// Best holds what decides which variants of each family are too inaccurate, by the family's name.
type Best map[string]Bounds

// Bounds are a family's. A stated floor goes before the one that follows from the best variant.
type Bounds struct {
	Best   float64 // the accuracy of the best variant
	Stated float64 // the largest least accuracy that is stated for the family, in (0, 1]; 0: none is
}

// Floor is the least accuracy of a variant that answers for the family.
func (b Bounds) Floor() float64 {
	if b.Stated > 0 {
		return b.Stated
	}
	return MinRatio * b.Best
}

// Add takes a variant of a family with its accuracy, which is 0 if it is unknown.
func (b Best) Add(family string, accuracy float64) {
	bounds := b[family]
	bounds.Best = max(bounds.Best, Known(accuracy))
	b[family] = bounds
}

// Require takes what somebody states as the least accuracy of a family's answers; 0: nothing. Of
// several the largest counts.
func (b Best) Require(family string, floor float64) {
	if floor > 0 && floor <= 1 {
		bounds := b[family]
		bounds.Stated = max(bounds.Stated, floor)
		b[family] = bounds
	}
}

// Excludes reports whether a variant with this accuracy, 0 if it is unknown, is too inaccurate to
// answer for the family.
func (b Best) Excludes(family string, accuracy float64) bool {
	return Known(accuracy) < b[family].Floor()
}

// Why says why a variant with this accuracy does not answer for the family, and what to do; empty if
// it may answer.
func (b Best) Why(family string, accuracy float64) string {
	if !b.Excludes(family, accuracy) {
		return ""
	}
	if of := b[family]; of.Stated > 0 {
		return fmt.Sprintf("too inaccurate for family %q: its accuracy is %.4g, less than %.4g, the "+
			"min_accuracy that a file, or muster place, states for the family", family, accuracy,
			of.Stated)
	}
	return fmt.Sprintf("too inaccurate for family %q: its accuracy is %.4g, less than %v of the best "+
		"one's, %.4g; make a more accurate variant, state a lower min_accuracy for the family, or "+
		"remove the key family from its model.yaml", family, accuracy, MinRatio, b[family].Best)
}
