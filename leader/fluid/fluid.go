package fluid

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Type is an instance type and how many instances the pool has of it, >= 0. Types with the same
// name are classes of one type: instances that hold different models.
type Type struct {
	Name  names.LaneType
	Count int
	// Models are the models that tell the class from others of the type, in order; nil if no other
	// type of the program has the name.
	Models []names.ModelKey
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
	// Late is the mean latency by type whatever the target, in the same order; 0 where the type does
	// not hold the model. If a model misses its target however its queries are divided, because too
	// many are in bins that no type serves in time, then queries of those bins are work without a
	// deadline, which takes so long; if Late is nil, such a model makes the limit 0.
	Late []time.Duration
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
	// Kept are the models that long runs of others may not block, see [Program.KeptFor]. With more
	// than 64 types with instances, or many models, it does not count.
	Kept []Kept
}

// A Price is what an instance type's time is worth.
type Price struct {
	Type names.LaneType
	// PerMs is the dual of the type's time: the worth of 1 ms on one of its instances, where an
	// average query is worth 1. It is 0 if the type has time to spare. If the type has classes, it
	// is the mean over the time that its instances are busy.
	PerMs float64
	// Service is the mean latency of the queries that the program sends to the type; 0 if it sends
	// none.
	Service time.Duration
	// Classes are the prices of the type's classes; nil if they are alike.
	Classes []ClassPrice
}

// A ClassPrice is what the time of the instances of a type is worth that hold, of all models that
// the type's classes name, exactly these.
type ClassPrice struct {
	Models  []names.ModelKey // in order
	PerMs   float64
	Service time.Duration
}

// Equal reports whether both prices are the same.
func (p Price) Equal(o Price) bool {
	return p.Type == o.Type && p.PerMs == o.PerMs && p.Service == o.Service &&
		slices.EqualFunc(p.Classes, o.Classes, func(a, b ClassPrice) bool {
			return a.PerMs == b.PerMs && a.Service == b.Service && slices.Equal(a.Models, b.Models)
		})
}

// An Unmet is a model that misses its target: the Share of its queries that no type serves in time
// is more than may go unserved.
type Unmet struct {
	Model names.ModelKey
	Share float64
}

// A Solution is the solution of a Program.
type Solution struct {
	// Rate is the fluid limit in queries/s of all arrivals, those included that nothing serves.
	Rate float64
	// Prices has one price for each name of a type, in the program's order.
	Prices []Price
	// PerMs is, by type, the worth of 1 ms on one of its instances, as in [Price].
	PerMs []float64
	// Unmet are the models that miss their target however queries are divided, see [Bin.Late], in
	// the order of their first bins.
	Unmet []Unmet
	// Worth is, by bin, the price of the time that one of its queries takes (an average query is
	// worth 1). It is 0 for a bin that is left unserved for free.
	Worth []float64
	// Busy is, by type, the mean number of its instances that are busy, in [0, Count].
	Busy []float64
}
