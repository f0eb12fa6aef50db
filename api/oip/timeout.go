package oip

import "time"

// longestTimeout is what a client may ask for of any model.
const longestTimeout = time.Minute

// Timeout is how long after its arrival a query is dropped: as the client asked, by a timeout above
// 0 or otherwise (given), but after a minute or, where that is longer, the model's deadline. A
// client that asks for nothing gets the deadline; 0 means that there is none.
func Timeout(asked time.Duration, given bool, deadline time.Duration) time.Duration {
	switch longest := max(deadline, longestTimeout); {
	case asked > 0:
		return min(asked, longest)
	case given:
		return longest
	default:
		return deadline
	}
}
