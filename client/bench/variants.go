package bench

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/oip"
)

// VariantAnswers are the answers that a variant gave to queries for its family.
type VariantAnswers struct {
	Model    string  `json:"model"`
	Version  string  `json:"version"`
	Accuracy float64 `json:"accuracy"` // in (0, 1]; 0 if unknown
	Answered int64   `json:"answered"`
	Share    float64 `json:"share"` // of the family's answers, in [0, 1]
}

// variants counts the answers of a family by the variant that gave them.
type variants map[VariantAnswers]int64

// countAnswer counts an answer; that of a query for a model does not count.
func (v *variants) countAnswer(answer *oip.Response) {
	if answer.Variant == "" {
		return
	}
	if *v == nil {
		*v = variants{}
	}
	(*v)[VariantAnswers{
		Model: answer.Variant, Version: answer.VariantVersion, Accuracy: answer.Accuracy,
	}]++
}

// reportVariants returns the variants, the most accurate first, and their answers' mean accuracy, 0
// if there are none. An unknown accuracy counts as 1.
func (v variants) reportVariants() (all []VariantAnswers, accuracy float64) {
	var answers int64
	for _, n := range v {
		answers += n
	}
	for variant, n := range maps.All(v) {
		variant.Answered, variant.Share = n, float64(n)/float64(answers)
		all = append(all, variant)
	}
	slices.SortFunc(all, func(a, b VariantAnswers) int {
		return cmp.Or(cmp.Compare(b.Accuracy, a.Accuracy), cmp.Compare(a.Model, b.Model),
			cmp.Compare(a.Version, b.Version))
	})
	for _, variant := range all { // in a fixed order, so that the sum is always the same
		accuracy += variant.Share * cmp.Or(variant.Accuracy, 1)
	}
	return all, accuracy
}

// sharesOf describes who answered, in one line.
func sharesOf(all []VariantAnswers) string {
	parts := make([]string, len(all))
	for i, v := range all {
		known := "unknown"
		if v.Accuracy > 0 {
			known = fmt.Sprintf("%.4f", v.Accuracy)
		}
		parts[i] = fmt.Sprintf("%s %.1f %% (accuracy %s)", v.Model, 100*v.Share, known)
	}
	return strings.Join(parts, ", ")
}
