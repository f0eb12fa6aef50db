// Package queries is a gateway's side of the protocol: what becomes of its queries, who is
// tried as the leader, and when a leader counts as silent. It is pure: it starts no
// goroutine, reads no clock and sends nothing, so package client drives it with streams and
// package sim in virtual time.
//
// In come a [State]'s events, as method calls with their time: queries arrive, attempts end, a
// leader answers, says something, or is lost. Out go actions ([State.Next]), what the leader is
// to be told ([State.Message]), who is to be tried as the leader ([State.Try]) and which queries
// are to be decided without one ([State.Inquire]). The caller owns streams, timers, payloads and
// the decisions themselves (leader/match.Leaderless).
package queries
