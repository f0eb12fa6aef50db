// Package serve is the room of an agent that answers: the Open Inference Protocol by gRPC and REST,
// and the calls of other agents and of SDKs, over sockets and in process ([Local]).
//
// In come the calls of clients that the guard admits. They are counted before they are read
// (intake). A query becomes an [oip.Request], whatever the protocol. In a fleet the agent's gateway
// has it answered; an agent that is alone has its own worker run it; an attempt of a gateway goes
// to the worker. What is asked of the fleet (metadata, readiness, loads, events, status) is
// answered from the members' view, or by asking the members. Out go answers, errors with the codes
// of package outcome, metrics and health.
//
// A [Server] owns the goroutines of its three servers, and those of their connections and calls;
// Stop and Close end them. Follow runs on a goroutine of the caller. Local owns one goroutine for
// each stream in process.
package serve
