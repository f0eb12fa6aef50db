// Package workload generates queries: their arrival times, models and batch sizes.
//
// In come an arrival process, distributions of batch sizes and a seed, or a recorded trace; out
// comes an iterator of queries. The simulator and the load generator (package bench) share the
// package, so a simulated run and a live one can get the same queries. The same seed gives the same
// queries; another rate scales the times between arrivals and changes neither their pattern nor the
// batch sizes. The package starts no goroutine and reads no clock.
package workload
