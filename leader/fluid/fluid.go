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
	// Splits says that a query of the bin may run as two or three parts, each of the size of
	// another bin of the model, or smaller.
	Splits bool
}

// A Program is a pool and the arrivals that it is to serve.
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
	// PerMs is the dual of the type's time: the worth of 1 ms on one of its instances, where an
	// average query is worth 1. It is 0 if the type has time to spare.
	PerMs float64
	// Service is the mean latency of the queries that the program sends to the type; 0 if it sends
	// none.
	Service time.Duration
}

// A Solution is the solution of a Program.
type Solution struct {
	// Rate is the fluid limit in queries/s.
	Rate float64
	// Prices has one price for each type, in the program's order.
	Prices []Price
	// Worth is, by bin, the price of the time that one of its queries takes (an average query is
	// worth 1). It is 0 for a bin that is left unserved for free.
	Worth []float64
	// Busy is, by type, the mean number of its instances that are busy, in [0, Count].
	Busy []float64
}
