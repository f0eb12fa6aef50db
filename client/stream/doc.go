// Package stream sends queries to an agent on a stream: a [Conn] is a gRPC connection whose
// ModelInfer calls go, where they are small, on one Queries stream of the control protocol. That
// costs both ends less than half of a call's CPU time, and changes nothing else: a call's metadata,
// deadline, cancellation, errors and trailer are those that it would have.
//
// What comes in: calls, from package client and from agents. What goes out: the same calls. A Conn
// has at most one goroutine, which opens the stream and receives its answers.
package stream
