package choose

import (
	"math"
	"slices"
	"time"
)

// History returns the mean load of each time slot of the last hours that has ended, in queries/s,
// the oldest first, and how long ago the last of them ended. A slot is slotWidth long.
func (c *Chooser) History(now time.Duration) (loads []float64, age time.Duration) {
	return slices.Clone(c.rhythm.loads), now - time.Duration(c.rhythm.slot)*slotWidth
}

// Repeats reports whether a period is known after which the load repeats.
func (c *Chooser) Repeats() bool { return c.rhythm.period > 0 }

// SetHistory takes over the load that another Chooser has seen, as History returns it: the load of
// the last hours, and of it that of the last Calm. It does so only where this Chooser has seen
// nothing yet, and what was seen is not too old to say anything.
func (c *Chooser) SetHistory(now time.Duration, loads []float64, age time.Duration) {
	if len(c.loads) > 0 || len(loads) == 0 || age < 0 || age >= 2*maxPeriod*slotWidth {
		return
	}
	for _, rate := range loads {
		if !(rate >= 0) || math.IsInf(rate, 0) {
			return
		}
	}
	known := loads[max(0, len(loads)-2*maxPeriod-1):]
	current := int64(now / slotWidth)
	// The slots of the other Chooser begin at other times: to the nearest one of these.
	end := int64(math.Round(float64(now-age) / float64(slotWidth)))
	c.rhythm.continueFrom(known, current, int(max(0, current-end)))
	for i, rate := range known {
		at := time.Duration(end-int64(len(known)-i))*slotWidth + slotWidth/2
		if now-at <= c.config.Calm+time.Minute {
			c.loads = append(c.loads, load{at, rate})
		}
	}
}

// continueFrom has the rhythm know loads, after which so many slots are missing before the current
// one: they count as a period before, or as the last one where no period is known.
func (r *rhythm) continueFrom(loads []float64, current int64, missing int) {
	r.loads = slices.Clone(loads)
	r.find()
	for range missing {
		r.loads = append(r.loads, r.loads[len(r.loads)-max(1, r.period)])
	}
	r.loads = slices.Delete(r.loads, 0, max(0, len(r.loads)-2*maxPeriod-1))
	r.slot, r.sum, r.n = current, 0, 0
}
