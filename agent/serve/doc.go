// Package serve is the room of an agent that answers: the Open Inference Protocol by gRPC and REST, and
// the calls of other agents and of SDKs, over sockets and in process ([Local]).
//
// In come calls of clients whom the guard lets in, counted before they are read (intake). A query
// becomes an [oip.Request] and takes one way whatever the protocol: in a fleet this agent's gateway has
// it answered, alone its own worker runs it; an attempt goes to the worker. What is asked of the
// fleet (metadata, readiness, loads, events, its state) is answered from the members' view, or by
// asking them. Out go answers, errors as package outcome codes them, metrics and health.
//
// A [Server] owns the goroutines of its three servers and of their connections and calls; Stop and
// Close end them. Follow is one of the caller's. Local owns one for each stream in process.
package serve
