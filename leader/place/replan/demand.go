package replan

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/staffing"
)

// DemandWindow is the length of the windows in which a [Demand] counts.
const DemandWindow = time.Second

// demandMemory is the memory of the moving average (EWMA), in s; demandAlpha is the weight of a
// window in it. Chosen.
const demandMemory, demandAlpha = 2.6, 1 / 2.6

// A Demand estimates at which rate a family's queries arrive, from a count of all that have
// arrived. The zero value has seen nothing. It is not safe for concurrent use.
type Demand struct {
	began   bool
	since   time.Time // of the window that is open
	count   uint64    // then
	first   time.Time // when the first query was known
	any     bool
	windows []window // those that have ended, the newest last
	mean    float64
}

type window struct {
	end  time.Time
	rate float64
}

// Count notes that so many queries have arrived in all by now. A count below the last one begins
// anew: the counter was reset.
func (d *Demand) Count(now time.Time, arrived uint64) {
	if !d.began || arrived < d.count {
		d.began, d.since, d.count = true, now, arrived
		return
	}
	if arrived > d.count && !d.any {
		d.any, d.first = true, now
	}
	took := now.Sub(d.since)
	if took < DemandWindow {
		return
	}
	rate := float64(arrived-d.count) / took.Seconds()
	if len(d.windows) == 0 {
		d.mean = rate
	}
	d.mean += demandAlpha * (rate - d.mean)
	d.since, d.count = now, arrived
	d.windows = append(d.windows, window{now, rate})
	if n := len(d.windows); n > 4 && n == cap(d.windows) { // rather than grow
		old := slices.IndexFunc(d.windows,
			func(w window) bool { return now.Sub(w.end) < 2*longestDemand })
		d.windows = slices.Delete(d.windows, 0, max(0, old))
	}
}

// longestDemand is the longest time over which a Demand can be asked.
const longestDemand = time.Minute

// Last is the rate in the last window that has ended, in queries/s; 0 if none has.
func (d *Demand) Last() float64 {
	if len(d.windows) == 0 {
		return 0
	}
	return d.windows[len(d.windows)-1].rate
}

// Mean is a moving average of the windows' rates.
func (d *Demand) Mean() float64 { return d.mean }

// Likely is the rate to plan for: the mean of the windows that ended within the time before now, at
// most a minute, or that of the busiest of them if chance does not explain it.
func (d *Demand) Likely(now time.Time, within time.Duration) float64 {
	rate := d.Average(now, within)
	for _, w := range slices.Backward(d.windows) {
		if now.Sub(w.end) >= within {
			break
		}
		rate = max(rate, staffing.Likely(w.rate, DemandWindow.Seconds()))
	}
	return rate
}

// Average is the mean rate of the windows that ended within the time before now, at most a minute.
func (d *Demand) Average(now time.Time, within time.Duration) float64 {
	sum, n := 0.0, 0
	for _, w := range slices.Backward(d.windows) {
		if now.Sub(w.end) >= within {
			break
		}
		sum += w.rate
		n++
	}
	return sum / float64(max(n, 1))
}

// Known is how long ago the first query arrived; 0 if none has.
func (d *Demand) Known(now time.Time) time.Duration {
	if !d.any {
		return 0
	}
	return now.Sub(d.first)
}
