// Package replan decides when the fleet's placement changes, to what, and in which order its agents
// go there.
//
// A [Replanner] is stepped, at least each second, with a [Snapshot] of what the leader knows, and
// answers with what is to be done: a [Problem] to be solved beside the leader's loop, a new
// placement, the agents that may begin to change, what waits for what, and what is to be told. It
// solves nothing itself in a step. So the simulator runs what production runs.
//
// The package is pure: no goroutine, no clock, no randomness but that of the seed.
package replan
