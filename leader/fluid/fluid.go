package fluid

import (
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Type is an instance type and how many instances the pool has of it, >= 0.
type Type struct {
	Name  names.LaneType
	Count int
}

// A Bin is a batch size (or a narrow range) of one model.
type Bin struct {
	Model     names.ModelKey
	BatchSize int
	// Share is the bin's part of all arrivals, >= 0. The shares are normalised.
	Share float64
	// Latency is the mean latency by type, in the order of Program.Types; 0 where
	// the type cannot meet the model's QoS target.
	Latency []time.Duration
}

// A Program is a pool and what it is asked to serve.
type Program struct {
	Types []Type
	Bins  []Bin
	// Unserved is the share of each model's queries that may go unserved, in [0, 1); a QoS target
	// of 99 % means 0.01.
	Unserved float64
}

// A Price is what an instance type's time is worth.
type Price struct {
	Type names.LaneType
	// PerMs is the dual of the type's time: the worth of a ms on one of its instances, where
	// an average query is worth 1. 0: the type has time to spare.
	PerMs float64
	// Service is the mean latency of what the program sends to the type; 0: nothing.
	Service time.Duration
}

// A Solution of a Program.
type Solution struct {
	// Rate is the fluid limit in queries/s.
	Rate float64
	// Prices has one price for each type, in the program's order.
	Prices []Price
	// Worth is by bin: what serving one of its queries uses at these prices (an
	// average query is worth 1); 0 for a bin left unserved for free.
	Worth []float64
	// Busy is by type: the mean number of its instances that are busy, in [0, Count].
	Busy []float64
}
