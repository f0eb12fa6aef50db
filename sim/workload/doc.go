// Package workload generates queries: when they arrive, for which model, and how large they are.
//
// The simulator and the load generator (package bench) share it, so a simulated run and a live one
// can get the same queries. All that it draws comes from a seed: the same seed gives the same
// queries. Another rate stretches the arrivals, and does not change their pattern or batch sizes.
package workload
