// Package match decides which lane serves which query.
//
// A [Matcher] is a pure state machine. In come events, each with the time at which it happened. Out
// come decisions, and the time at which the matcher wants to be stepped again. It starts no
// goroutine, reads no clock, and draws randomness only from its seed. The agent feeds it from the
// network and the simulator from its event heap; both get the same decisions from the same events.
// Events and decisions have one text form ([AppendEvent], [ParseEvent], [AppendDecision]).
//
// The matcher holds the queries, the lanes and the reservations. It guarantees that a query has at
// most one live assignment and exactly one outcome, and that no lane gets more than it holds or a
// model that it lacks. A policy only chooses which waiting query an open lane takes next. One from
// outside of this package is a [Chooser]. A pool of more than some twenty lanes is divided into
// shards, which are matched separately.
//
// A gateway that has no leader ranks lanes by prices and by the last news of them ([PricedLanes]);
// package inquire asks the best when they would finish the query.
package match
