package evaluate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// components are a score and what its parts contribute, from which its error follows: of an AUC
// those of the rows labelled 1 and of the others (DeLong et al., Biometrics 1988), of a mean its
// terms.
type components struct {
	value float64
	parts [2][]float64
}

// scoreVariance returns the variance of the score.
func (c components) scoreVariance() float64 {
	total := 0.0
	for _, part := range c.parts {
		n := float64(len(part))
		if n < 2 {
			continue
		}
		mean, squares := 0.0, 0.0
		for _, v := range part {
			mean += v / n
		}
		for _, v := range part {
			squares += (v - mean) * (v - mean)
		}
		total += squares / (n - 1) / n
	}
	return total
}

// subtract returns the components of the difference of two scores on the same rows.
func (c components) subtract(other components) components {
	d := components{value: c.value - other.value}
	for p := range c.parts {
		d.parts[p] = make([]float64, len(c.parts[p]))
		for i, v := range c.parts[p] {
			d.parts[p][i] = v - other.parts[p][i]
		}
	}
	return d
}

// aucComponents returns the area under the ROC curve: the share of pairs of a row labelled 1 and
// one labelled 0 in which the former has the higher answer; equal answers count half.
func aucComponents(labels []bool, answers []float32) (components, error) {
	if len(labels) != len(answers) {
		return components{}, fmt.Errorf("got %d labels for %d rows", len(labels), len(answers))
	}
	order := make([]int, len(answers))
	total := [2]float64{} // of rows labelled 0 and 1
	at := make([]int, len(answers))
	for i := range order {
		order[i] = i
		at[i] = int(total[labelIndex(labels[i])])
		total[labelIndex(labels[i])]++
	}
	for label, n := range total {
		if n == 0 {
			return components{}, errors.New(
				[]string{"no label is 0", "no label is 1"}[label] + ": the AUC needs both")
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(answers[a], answers[b]) })
	c := components{parts: [2][]float64{make([]float64, int(total[1])),
		make([]float64, int(total[0]))}}
	below := [2]float64{} // rows with a lower answer, by label
	for first := 0; first < len(order); {
		last := first
		equal := [2]float64{}
		for ; last < len(order) && answers[order[last]] == answers[order[first]]; last++ {
			equal[labelIndex(labels[order[last]])]++
		}
		for _, i := range order[first:last] {
			if labels[i] {
				c.parts[0][at[i]] = (below[0] + equal[0]/2) / total[0]
			} else {
				c.parts[1][at[i]] = (total[1] - below[1] - equal[1]/2) / total[1]
			}
		}
		below[0] += equal[0]
		below[1] += equal[1]
		first = last
	}
	for _, v := range c.parts[0] {
		c.value += v / total[1]
	}
	return c, nil
}

func labelIndex(label bool) int {
	if label {
		return 1
	}
	return 0
}

// items is how many rows are ranked together; kept is how many of them count.
const (
	items = 100
	kept  = 10
)

// topTenShare returns the mean share of the teacher's ten best of a hundred rows that are among the
// ten best of the answers. Of equal answers the earlier row is better.
func topTenShare(teacher, answers []float32) components {
	var c components
	groups, total := len(teacher)/items, 0
	for g := range groups {
		want := bestTen(teacher[g*items:][:items])
		n := 0
		for _, i := range bestTen(answers[g*items:][:items]) {
			if slices.Contains(want, i) {
				n++
			}
		}
		c.parts[0] = append(c.parts[0], float64(n)/kept)
		total += n
	}
	c.value = float64(total) / float64(kept*groups)
	return c
}

func bestTen(answers []float32) []int {
	order := make([]int, len(answers))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(answers[b], answers[a]) })
	return order[:kept]
}

// AUC returns the area under the ROC curve of answers to rows with the given labels. It is an error
// if all labels are the same.
func AUC(labels []bool, answers []float32) (float64, error) {
	c, err := aucComponents(labels, answers)
	return c.value, err
}
