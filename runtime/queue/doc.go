// Package queue decides in which order a lane runs the queries that wait for it. Package runtime
// and the simulator both use it.
//
// The order has three classes. Queries that can still meet their QoS targets come first, in the
// order in which their answers are due: earliest deadline first (EDF). Queries that are late or
// have no QoS target come next, in order of arrival. Background queries come last, in order of
// arrival, but first once they have waited for [BackgroundWait].
//
// If any order lets all queries of the first class meet their QoS targets, then the order by due
// time does (Jackson, 1955, for one machine). The order by latest start does not have this
// property: it can run a long query before a short one that is due earlier.
//
// [Spare] measures how much of the lanes' time late queries get, and so how long they will wait.
//
// The package is pure: it starts no goroutine and reads no clock. Time is an argument, from any
// origin, and must not go backwards. A queue is not safe for concurrent use.
package queue
