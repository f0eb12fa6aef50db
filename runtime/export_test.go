package runtime

import "time"

// Divisible returns a model that runs as whole, and as single on one core of a lane.
func Divisible(whole, single Model) Model { return both{whole, single} }

type both struct {
	Model
	single Model
}

func (b both) onOneCore() Model { return b.single }

// GraphTimes returns how long the graphs of a model on the card take, by batch size.
func GraphTimes(m Model) map[int]time.Duration {
	times := map[int]time.Duration{}
	for _, size := range m.(*session).graphs.sizes {
		times[size.rows] = size.took
	}
	return times
}
