// Package profiles knows how long a query takes on which instance type, and what queries arrive.
//
// It holds the catalogue of instance types with their prices, latency profiles (shipped with the
// program, or learned online), measured latency samples, and a monitor of the batch sizes and rates
// that arrive. In come measured latencies and arrivals, from the agent. Out go latency tables, to
// the leader and the simulator, which match queries and plan fleets with them. It decides nothing.
//
// A latency here is the execution time on one lane: from the start of the run to its outputs,
// without waiting and without the network.
//
// The package has no clock, no goroutine, no log and no network. The same calls in the same order
// give the same values. Unless a type says otherwise, it is not safe for concurrent use.
package profiles

// MaxBatchSize is the largest batch size the package keeps apart; it bounds what
// a profile or a monitor may hold in memory.
const MaxBatchSize = 1 << 16
