// Package fluid computes what a pool could serve if queries could be divided at will: the highest
// rate (the fluid limit), the price of an instance's time at that rate, and the worth of a query.
//
// In come the arrivals by model and batch size, the latencies, and the instances of each type. Out
// come the solution of this linear program and its duals: maximise the rate r such that the
// arrivals of every bin (model and batch size) are divided over the types that meet the QoS target
// there, at most a given share of each model's queries goes unserved, and no type is busier than it
// has instances. The limit holds for mean latencies, so a finite noisy run may exceed it a little.
//
// The package is pure: no goroutine, no clock, no randomness.
package fluid
