package lateness

import "time"

// IsLoss reports whether a component makes runs longer than they should be.
func (c Component) IsLoss() bool {
	switch c {
	case LackedCPU, WasThrottled, AwaitedPages, AwaitedGPU, RanLong:
		return true
	}
	return false
}

// roomAbove is the share of the lanes' time that runs may take, without what is lost to causes, for
// the lanes to have room. Chosen: queries wait for long above it, whatever else happens.
const roomAbove = 0.85

// minLoss is the share of runs' time that is worth laying a wait to.
const minLoss = 0.1

// DivideWait adds a wait for a lane to parts. The largest loss of the runs on the lanes takes the
// wait, if without it alone the lanes would have had room; else all losses take their shares of it, if
// they would have had room without all of these; else they take their shares of the lanes' time, and
// the rest is a wait for a lane. spent is where the time of these runs went, and busy, at least 0, how
// much of the lanes' time they took.
func DivideWait(parts *[Components]time.Duration, wait time.Duration,
	spent *[Components]time.Duration, busy float64) {
	lost, largest := time.Duration(0), Component(Components)
	for c, d := range spent {
		if !Component(c).IsLoss() {
			continue
		}
		lost += d
		if largest == Components || d > spent[largest] {
			largest = Component(c)
		}
	}
	ran := lost + spent[RanAsProfiled]
	if ran <= 0 || float64(lost) < minLoss*float64(ran) {
		parts[AwaitedLane] += wait
		return
	}
	hasRoomWithout := func(d time.Duration) bool {
		return busy*(1-float64(d)/float64(ran)) <= roomAbove
	}
	if hasRoomWithout(spent[largest]) {
		parts[largest] += wait
		return
	}
	laid := wait
	if !hasRoomWithout(lost) {
		laid = time.Duration(float64(lost) / float64(ran) * float64(wait))
	}
	parts[AwaitedLane] += wait - laid
	for c, d := range spent {
		if Component(c).IsLoss() {
			parts[c] += time.Duration(float64(laid) * float64(d) / float64(lost))
		}
	}
}

// CauseOfWait is why a query would wait for lanes, as DivideWait has it; "" if the lanes have room.
func CauseOfWait(spent *[Components]time.Duration, busy float64) Cause {
	if busy <= roomAbove {
		return ""
	}
	var parts [Components]time.Duration
	DivideWait(&parts, time.Second, spent, busy)
	best := AwaitedLane
	for c := range Component(Components) {
		if parts[c] > parts[best] {
			best = c
		}
	}
	return causes[best]
}
