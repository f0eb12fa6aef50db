package agent

import "time"

// Homeless is how long a rented machine's agent looks for its fleet.
const Homeless = homeless

// DrainTimeout is how long a drain may take now.
func (i Inside) DrainTimeout() time.Duration { return i.drainTimeout() }
