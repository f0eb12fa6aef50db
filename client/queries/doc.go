// Package queries is the gateway's side of the protocol between gateways and leaders. It decides
// the outcome of each query, which member is tried as the leader, and when a leader counts as
// silent. It is pure: it starts no goroutine, reads no clock and sends nothing. Package client
// drives it with streams, and package sim/fleet in virtual time.
//
// In come a [State]'s events, as method calls with their time: queries arrive, attempts end, a
// leader answers, sends a message, splits a query, or is lost. Out go actions ([State.Next]),
// messages to the leader ([State.Message]), the member to try as the leader ([State.Try]) and the
// queries to decide without a leader ([State.Inquire]). The caller owns the streams, the timers,
// the payloads, and the inquire.State that makes those decisions.
package queries
