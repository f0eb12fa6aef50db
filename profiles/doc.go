// Package profiles knows how long a query takes where, and what the queries are
// like: the catalogue of instance types with their prices, latency profiles
// (shipped with the program or learned online), the published latency samples,
// and a monitor of the batch sizes that arrive.
//
// It decides nothing. The leader and the simulator read its tables to match
// queries and plan fleets; the agent feeds it what it measures. It has no clock,
// no goroutine, no log and no network, and given the same calls in the same order
// it holds the same values.
//
// A latency here is execution time on one lane: from the start of the run to its
// outputs, with no waiting and no network in it.
package profiles

// MaxBatchSize is the largest batch size the package keeps apart; it bounds what
// a profile or a monitor may hold in memory.
const MaxBatchSize = 1 << 16
