package oip

import "time"

// longestTimeout is the longest timeout that a client may ask for, of a model with any deadline.
const longestTimeout = time.Minute

// Timeout returns how long after its arrival a query is dropped; 0: never. asked is the client's
// timeout, 0 if it gave none; given says that the client has set a deadline in another way, as by
// gRPC. A client's timeout counts up to a minute or, if that is longer, up to the model's deadline.
// A client that sets nothing gets the model's deadline.
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
