// Package match decides which lane serves which query.
//
// A [Matcher] is a pure state machine. It takes events, each with the time it
// happened, and returns decisions and the time at which it wants to be stepped
// again. It starts no goroutine, reads no clock and draws no randomness that it
// was not given, so the agent feeds it from the network and the simulator from
// an event heap, and both get the same decisions from the same events. Events
// and decisions have one serial form ([AppendEvent], [ParseEvent],
// [AppendDecision]); a recorded run replays to the byte.
//
// What a matcher holds (queries, lanes, reservations) and what it promises (at
// most one live assignment a query, exactly one outcome, no lane given more
// than it holds or a model it lacks) is independent of the [Policy], which only
// chooses which waiting query an open lane takes next. Pools of more than some
// twenty lanes are split into shards that are matched alone.
//
// [Leaderless] is the decision of a gateway that has no leader to ask, by what [Priced] knows: the
// same kind of state machine, driven by gateways and by the simulator.
package match
