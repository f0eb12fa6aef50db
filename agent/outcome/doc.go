// Package outcome is what an agent tells of an error: to clients in gRPC and REST, to other agents,
// and in the metrics.
//
// In come errors that wrap one of its own, from all rooms of the agent. Out go codes, statuses and
// the reasons that metrics count. It is the only place that chooses codes. It knows none of the
// rooms, and has no state and no goroutine.
package outcome
