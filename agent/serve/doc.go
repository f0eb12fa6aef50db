// Package serve is the part of an agent with its servers: the Open Inference Protocol by gRPC and
// REST, the calls of other agents and of SDKs, and the metrics. Calls come over sockets or in
// process ([Local]).
//
// Input: the calls of clients that the guard (package secure) admits. The intake counts a query's
// bytes before the query is read, and refuses the query if there are too many. A query becomes an
// [oip.Request], whatever its protocol, and goes to the agent's gateway, which has an agent of the
// fleet run it, or calls [Local.InferAlone] if there is none but this one. [QueryCounters] count
// what arrives and what of it fails. The worker also runs the attempts that gateways send. The
// server answers calls about the fleet (metadata, readiness, loads, events, status) from the
// members' view, or it calls the other members. Output: answers, errors with the codes of package
// outcome, metrics, events and health.
//
// Queries also come on connections of their own (package queryconn), which the gRPC server's port
// accepts.
//
// A [Server] owns the goroutines of its servers, and those of their connections and calls;
// Stop and Close end them. Follow runs on a goroutine of the caller. Local owns one goroutine for
// each stream in process.
//
// # Why Local is not grpchan's in-process channel
//
// The two were compared with grpchan 1.1.2, medians of 5 interleaved runs. A call that returns a
// Member with five models takes 2.1 us and 24 allocations with [Local], 5.5 us and 32 with grpchan;
// a query of 512 KiB 1.1 us and 17, against 5.2 us and 25. A message on an open stream takes 0.5 us
// against 0.8 us, with 2 allocations each; a message and its answer 1.8 us with both. Over a socket
// of the same machine, these four take 71 us, 321 us, 1.0 us and 35 us.
//
// grpchan runs each unary handler on a goroutine of its own, so a call can end at its deadline
// before its handler does. Its own copying cannot copy an [oip.Request]; it took a copier like
// Local's. It hides the values of the caller's context; it holds one message of a stream, not 256;
// it has no Close that waits for handlers. It has stats handlers, credentials of calls,
// interceptors, headers and trailers of streams, none of which an agent needs with itself. It
// brings in golang/protobuf and protoreflect.
package serve
