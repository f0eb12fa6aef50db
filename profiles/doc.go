// Package profiles learns how long queries take on each instance type, and which queries arrive.
//
// It holds the catalogue of instance types with their prices, latency profiles (shipped with the
// program or learned online), measured latency samples, and a monitor of batch sizes and arrival
// rates. Agents give it measured latencies and arrivals. The leader and the simulator take latency
// tables from it, to match queries and to plan fleets. The package itself decides nothing.
//
// A latency here is the execution time on one lane: from the start of the run to its outputs,
// without waiting and without the network.
//
// The package has no clock, no goroutine, no log and no network. The same calls in the same order
// give the same values. Unless a type says otherwise, it is not safe for concurrent use.
package profiles

// MaxBatchSize is the largest batch size that the package accepts. It bounds the memory of a
// profile and of a monitor.
const MaxBatchSize = 1 << 16
