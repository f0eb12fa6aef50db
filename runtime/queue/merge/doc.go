// Package merge decides which of the queries that wait for a lane run together, as one execution of
// the sum of their batch sizes. Many models take hardly longer for eight items than for one, so
// merging small queries multiplies what a lane can serve. The latency profile says where it pays:
// where latency grows in proportion to the batch size, nothing is merged.
//
// In comes a [Kind]: the policy, the latency and the bounds that the queries which may run together
// share. [Kind.Choose] takes the waiting queries in the order in which a lane would run them, and
// returns those that run now, or until when the lane waits for more. [Taker] does this for a
// [queue.Queue]. The matcher, the lanes of package runtime and the simulator all decide with this
// code.
//
// The package is pure: it starts no goroutine and reads no clock. Nothing in it is safe for
// concurrent use.
package merge
