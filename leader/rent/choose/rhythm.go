package choose

import (
	"math"
	"slices"
	"time"
)

const (
	// slotWidth is the resolution of the load's history. It is that of the leader's rates, which
	// are means of 10 s.
	slotWidth = 10 * time.Second
	// minPeriod and maxPeriod bound the periods looked for, in slots: 1 min and 2 h. The memory of
	// two of the longest is 12 kB, and the search takes .3 ms.
	minPeriod, maxPeriod = 6, 720
	// A load repeats after a period if its mean squared difference from the period before is at
	// most repeats times twice its variance, which is 1 for loads that have nothing to do with each
	// other. With .7, loads that do not repeat are taken to; with .15, loads that do cost up to 2 %
	// more in their first two periods. To let a known period go on up to .5 (hysteresis) makes crowds
	// at random times cost 1.22 times what a schedule does, in place of 1.15.
	repeats = 0.35
	// minOverlap is over how many slots loads must repeat at least: fewer do by chance.
	minOverlap = 12
	// minSwing is the standard deviation, as a share of the mean, from which repeating matters: the
	// headroom covers less. With .2, rhythms that the headroom does not cover are missed; with .01
	// nothing is otherwise, because chance alone must be exceeded, too.
	minSwing = 0.05
)

// A rhythm finds the period at which a load repeats.
type rhythm struct {
	loads  []float64 // the mean rate of each slot, the oldest first
	slot   int64     // the open slot, counted from the beginning of time
	sum, n float64   // of the open slot's rates
	period int       // in slots; 0: none is known
}

// observe notes the load of the last seconds, in queries/s.
func (r *rhythm) observe(now time.Duration, rate float64) {
	slot := int64(now / slotWidth)
	if slot != r.slot && r.n > 0 {
		mean := r.sum / r.n
		for range min(slot-r.slot, 2*maxPeriod) { // slots without any rate are as the last one
			r.loads = append(r.loads, mean)
		}
		r.loads = slices.Delete(r.loads, 0, max(0, len(r.loads)-2*maxPeriod-1))
		r.sum, r.n = 0, 0
		r.find()
	}
	r.slot = slot
	r.sum, r.n = r.sum+rate, r.n+1
}

// find looks for the shortest period of the loads: they repeat after it over its whole length.
func (r *rhythm) find() {
	if r.period > 0 {
		best, least := 0, repeats
		for lag := max(minPeriod, r.period-1); lag <= min(maxPeriod, r.period+1); lag++ {
			if d := r.difference(lag, r.variance(lag), least); d < least {
				best, least = lag, d
			}
		}
		if r.period = best; best > 0 {
			return
		}
	}
	least := repeats
	var v variance
	for lag := 1; lag <= maxPeriod && lag+overlapOf(lag) <= len(r.loads); lag++ {
		for i := 2*lag - 1; i <= min(2*lag, len(r.loads)); i++ {
			v.add(r.loads[len(r.loads)-i])
		}
		if r.period > 0 && lag > r.period+max(1, r.period/4) {
			return // what follows are multiples
		}
		if lag < minPeriod {
			continue
		}
		of := v
		if lag < minOverlap {
			of = r.variance(lag)
		}
		if d := r.difference(lag, of, least); d < least {
			r.period, least = lag, d
		}
	}
}

// overlapOf is how many slots at least must repeat what was a period before: the third period must
// be known a boot ahead of its beginning. With a third of the period, loads that do not repeat are
// taken to; with nine tenths, three minutes in 40 meet too little for 2m50s in all where boots take 5.
func overlapOf(lag int) int { return max(minOverlap, lag*3/5) }

// A variance is that of the numbers added.
type variance struct{ n, sum, squares float64 }

func (v *variance) add(x float64) { v.n, v.sum, v.squares = v.n+1, v.sum+x, v.squares+x*x }

// variance is that of the loads of two periods, or of as many as must repeat.
func (r *rhythm) variance(lag int) (v variance) {
	for _, x := range r.loads[max(0, len(r.loads)-max(2*lag, lag+minOverlap)):] {
		v.add(x)
	}
	return v
}

// difference is by how much the last lag slots differ from those before, of which v is: 0 where
// they are the same, about 1 where they have nothing to do with each other. It is infinite above
// most, and for loads that hardly change.
func (r *rhythm) difference(lag int, v variance, most float64) float64 {
	mean := v.sum / v.n
	of := v.squares/v.n - mean*mean
	chance := mean / slotWidth.Seconds() // the variance that a count has by chance
	if lag+overlapOf(lag) > len(r.loads) || !(of > max(minSwing*minSwing*mean*mean, 4*chance)) {
		return math.Inf(1)
	}
	overlap := min(max(lag, minOverlap), len(r.loads)-lag)
	whole, difference := 2*of*float64(overlap), 0.0
	for i := len(r.loads) - overlap; i < len(r.loads); i++ {
		d := r.loads[i] - r.loads[i-lag]
		if difference += d * d; difference > most*whole {
			return math.Inf(1)
		}
	}
	return difference / whole
}

// maxLoad is the highest load that is expected from one moment to another, in queries/s. A period
// must be known. The highest of several medians exceeds the mean that they are of by about a
// standard deviation of a slot's count, which is the square root of the count, and which it is
// less.
func (r *rhythm) maxLoad(from, to time.Duration) (rate float64) {
	// the slot after the last known one is r.slot
	for slot := int64(from / slotWidth); slot <= int64(to/slotWidth); slot++ {
		ahead := int(slot - r.slot)
		back := r.period - ahead%r.period // from the end of loads
		at := len(r.loads) - back
		expected := r.smooth(at)
		if at >= r.period { // the mean of two periods has less chance in it
			expected = (expected + r.smooth(at-r.period)) / 2
		}
		rate = max(rate, expected)
	}
	return max(0, rate-math.Sqrt(rate/slotWidth.Seconds()))
}

// smooth is the median of the loads about the i-th one. It keeps edges, and is taken over so few
// slots that a part of a period that is an eighth of it long counts.
func (r *rhythm) smooth(i int) float64 {
	width := min(3, r.period/24)
	around := slices.Clone(r.loads[max(0, i-width):min(len(r.loads), i+width+1)])
	slices.Sort(around)
	return around[len(around)/2]
}
