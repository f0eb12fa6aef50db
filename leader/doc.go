// Package leader holds the decisions of the agent that leads the fleet.
//
// A [State] is the state of one term of leadership. [State.Step] takes an event and the time at
// which it happened, and returns actions for its caller to carry out.
//
// Events come from members (what they are, what their lanes hold, when a lane is free), from
// gateways (queries submitted or cancelled), from the fleet's view, from the learning loop (package
// learn), and from the passing of time. Actions go to gateways and members, to the learning loop,
// and to the log.
//
// Package match, which a State drives, decides which lane serves which query. The State itself
// keeps the members, the models that they hold, the queries that each gateway has submitted, and
// the counters for the status.
//
// The package starts no goroutine, reads no clock, opens no socket and writes no log, so the same
// events give the same actions in an agent, in a replay and in the simulator. One goroutine of
// package agent/lead owns the State of a running agent; the simulator owns its own.
package leader
