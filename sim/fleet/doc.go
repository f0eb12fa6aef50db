// Package fleet simulates a whole fleet, with faults or without, in virtual time: agents with one
// lane each, of which one leads, gateways, and the network between them. Without faults a fleet can
// begin settled, see [Config.Settled]: then nothing is simulated that only matters when something
// fails.
//
// Production code makes the decisions: package election decides who leads, [leader.State] is the
// leader, client/queries and inquire.State decide at gateways, and runtime/lane decides what lanes
// run. This package carries the messages between them, and delays, cuts off, freezes
// or kills what the faults name.
//
// In come queries, by [Fleet.Arrive], and the time, by [Fleet.Until]. Out go the queries' outcomes,
// by [Config.Finish], and what followed from each fault, by [Fleet.Results]. The results depend
// only on the [Config] and the queries: the package starts no goroutine and reads no clock. A Fleet
// belongs to the goroutine that calls it, and calls the functions of its Config there. Package sim
// runs it.
package fleet
