package profiles

import "math"

const (
	// Ratios of latency to prediction are counted in eighths of an octave from 1 to 1,024, beyond
	// which they count as 1,024. An eighth, 9 %, is finer than what 1 % of some hundred queries can
	// tell.
	tailSteps = 8
	tailCount = 10 * tailSteps
	// tailPrior is how many queries in a row as predicted are assumed before there is evidence. It
	// is that of shape.
	tailPrior = shapePrior
	// tailKnown is from how many queries on a tail says more than the profile that it started from:
	// three of them are then beyond the 99 % quantile.
	tailKnown = 300
	// tailTrimmed is how many of the longest queries count as if they had been as predicted, so
	// that a freak one changes neither quantile nor mean. Two of a kind are no freak.
	tailTrimmed = 1
	// tailPending is how many outliers of an agent wait until it is known whether they begin a
	// lasting change: about as many extreme ones as show it.
	tailPending = 8
)

// A tail is how much longer single queries take than the model of a [Learner] predicts. The mean of
// a bin has outliers only up to a limit, and so have noise and shape. The tail has them whole, with
// those that were cut off before they ended.
//
// Its estimate of the distribution is that of Kaplan and Meier (1958): of the queries that have
// reached a ratio, those that end there over those that are seen there. A query that was cut off
// counts as one that has reached its ratio, and no further.
type tail struct {
	queries float64            // those within the prediction, too; older ones have less weight
	ended   [tailCount]float64 // queries that ended, by ratio
	excess  [tailCount]float64 // their sum of the ratio less that which counts in the bin's mean
	cut     [tailCount]float64 // queries that were cut off
}

// tailBin is the interval of a ratio of at least 1.
func tailBin(ratio float64) int { return min(int(tailSteps*math.Log2(ratio)), tailCount-1) }

// tailRatio is the ratio at a place between intervals.
func tailRatio(place float64) float64 { return math.Exp2(place / tailSteps) }

// add counts a query whose latency was ratio times the predicted one, and of which counted has
// entered the mean. cut says that it has taken at least so long, and did not end.
func (t *tail) add(ratio, counted float64, cut bool) {
	if ratio < 1 && cut {
		return // that says nothing of the longer ones
	}
	if t.queries++; ratio < 1 {
		return
	}
	i := tailBin(ratio)
	if cut {
		t.cut[i]++
		return
	}
	t.ended[i]++
	t.excess[i] += max(0, min(ratio, tailRatio(tailCount))-counted)
}

// scaleWeight gives all evidence less weight.
func (t *tail) scaleWeight(f float64) {
	t.queries *= f
	for i := range t.ended {
		t.ended[i] *= f
		t.excess[i] *= f
		t.cut[i] *= f
	}
}

// estimateQuantile returns the ratio that a share p of the queries does not exceed, 1 if it is
// less, and by how much the mean of all queries exceeds that of which outliers count only up to a
// limit, as a share of the predicted latency.
func (t *tail) estimateQuantile(p float64) (quantile, excess float64) {
	ended, cut := t.ended, t.cut
	top, trim := -1, float64(tailTrimmed)
	for i := tailCount - 1; i >= 0; i-- {
		n := min(trim, ended[i])
		ended[i] -= n
		trim -= n
		n = min(trim, cut[i])
		cut[i] -= n
		trim -= n
		if top < 0 && ended[i]+cut[i] > 0 {
			top = i
		}
	}
	seen := 0.0 // at the ratio and beyond
	for i := range top + 1 {
		seen += ended[i] + cut[i]
	}
	left := seen / (t.queries + tailPrior) // the share of all queries that reach the ratio
	quantile = 1
	for i := range top + 1 {
		// Those that are cut off in an interval are seen in half of it, on average.
		at := seen - cut[i]/2
		end := 0.0
		if ended[i] > 0 {
			end = left * ended[i] / at
			excess += end * t.excess[i] / t.ended[i]
		}
		if left > 1-p && left-end <= 1-p {
			quantile = tailRatio(float64(i) + (left-(1-p))/end)
		}
		left -= end
		seen -= ended[i] + cut[i]
	}
	if left > 1e-9 { // of these only a lower bound is known
		bound := tailRatio(float64(top + 1))
		excess += left * (bound - 1)
		if left > 1-p {
			quantile = bound
		}
	}
	return quantile, excess
}
