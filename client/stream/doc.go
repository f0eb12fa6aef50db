// Package stream sends queries to an agent in cheaper ways than calls: a [Conn] is a gRPC connection
// whose ModelInfer calls go on a connection for queries (package queryconn) if one is free, or else,
// where they are small, on one Queries stream of the control protocol. Nothing else changes: a call's
// metadata, deadline, cancellation, errors and trailer are those that it would have.
//
// What comes in: calls, from package client and from agents. What goes out: the same calls. A Conn
// has at most two goroutines: one opens the stream and receives its answers, the other opens
// connections.
package stream
