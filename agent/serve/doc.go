// Package serve is the part of an agent with its servers: the Open Inference Protocol by gRPC and
// REST, the calls of other agents and of SDKs, and the metrics. Calls come over sockets or in
// process ([Local]).
//
// Input: the calls of clients that the guard (package secure) admits. The intake counts a query's
// bytes before the query is read, and refuses the query if there are too many. A query becomes an
// [oip.Request], whatever its protocol. In a fleet, the agent's gateway has an agent of the fleet
// run the query; an agent that is alone has its own worker run it; the worker also runs the
// attempts that gateways send. The server answers calls about the fleet (metadata, readiness,
// loads, events, status) from the members' view, or it calls the other members. Output: answers,
// errors with the codes of package outcome, metrics, events and health.
//
// A [Server] owns the goroutines of its three servers, and those of their connections and calls;
// Stop and Close end them. Follow runs on a goroutine of the caller. Local owns one goroutine for
// each stream in process.
package serve
