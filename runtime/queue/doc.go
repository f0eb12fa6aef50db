// Package queue is the order in which a lane takes the queries that wait for it.
//
// First come queries that are still in time, by when their answers are due; then queries that are
// late or have no QoS target, by arrival; then background work, by arrival. Lanes (package runtime)
// and the simulator share this order.
//
// If the queries in time can all meet their QoS targets in some order, they do in the order by due
// time (Jackson's rule for one machine). In the order by latest start they may not: a long query
// then goes before a short one that is due before it.
//
// The package is pure: it starts no goroutine and reads no clock. Time is an argument, from any
// origin, and must not go backwards. A queue is not safe for concurrent use.
package queue
