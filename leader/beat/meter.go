package beat

import (
	"maps"
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

const (
	// latencySeconds is the number of seconds whose answers a [Meter] computes percentiles of.
	// Chosen: at 10 queries/s the 99 % quantile then rests on one or two, and a change shows within
	// seconds.
	latencySeconds = 15
	// busyOver is the time constant of the exponential average (EWMA) of how busy lanes are.
	// Chosen: lanes run for milliseconds, so a second alone flickers; people see a change within
	// seconds.
	busyOver = 10 * time.Second
)

// A Meter takes the counts of each second, and knows what needs several. It is not safe for
// concurrent use.
type Meter struct {
	latency map[leader.ModelID]*[latencySeconds]*Histogram
	at      int // of latency's arrays, where the last second is
	busy    map[names.AgentName][]float64
	took    bool
}

// NewMeter returns a meter that has taken nothing.
func NewMeter() *Meter {
	return &Meter{
		latency: map[leader.ModelID]*[latencySeconds]*Histogram{},
		busy:    map[names.AgentName][]float64{},
	}
}

// Take takes the counts of the time that has passed since the last call. The meter keeps parts of
// c: the caller must not change it afterwards. Agents without lanes in the term are forgotten:
// lanes are how many each agent has that is there.
func (m *Meter) Take(c *Counts, passed time.Duration, lanes map[names.AgentName]int) {
	m.at = (m.at + 1) % latencySeconds
	for model, seconds := range m.latency {
		seconds[m.at] = nil
		if c.Latency[model] == nil && *seconds == ([latencySeconds]*Histogram{}) {
			delete(m.latency, model)
		}
	}
	for model, l := range c.Latency {
		seconds := m.latency[model]
		if seconds == nil {
			seconds = new([latencySeconds]*Histogram)
			m.latency[model] = seconds
		}
		seconds[m.at] = l
	}
	maps.DeleteFunc(m.busy, func(a names.AgentName, _ []float64) bool { return lanes[a] == 0 })
	keep := math.Exp(-passed.Seconds() / busyOver.Seconds())
	if !m.took {
		keep = 0 // nothing is known of the time before
	}
	m.took = true
	for agent, n := range lanes {
		busy := m.busy[agent]
		if len(busy) != n {
			grown := make([]float64, n)
			copy(grown, busy)
			busy, m.busy[agent] = grown, grown
		}
		now := c.Busy[agent]
		for i := range busy {
			share := 0.0
			if i < len(now) && passed > 0 {
				share = float64(now[i]) / float64(passed)
			}
			// An execution counts when it ends, so one longer than a second makes a lane more than
			// wholly busy in that second; the mean is right.
			busy[i] = keep*busy[i] + (1-keep)*share
		}
	}
}

// Busy returns the share of a lane's time in use, in [0, 1].
func (m *Meter) Busy(agent names.AgentName, lane int) float64 {
	if busy := m.busy[agent]; lane >= 0 && lane < len(busy) {
		return min(1, busy[lane])
	}
	return 0
}

// Quantiles returns the median and the 99th percentile of a model's last answers, in nanoseconds;
// NaN if there were none.
func (m *Meter) Quantiles(model leader.ModelID) (p50, p99 float64) {
	var all Histogram
	if seconds := m.latency[model]; seconds != nil {
		for _, l := range seconds {
			if l != nil {
				all.Join(l)
			}
		}
	}
	return all.Quantile(0.5), all.Quantile(0.99)
}
