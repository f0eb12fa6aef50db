// Package client is the Go SDK. It sends queries over gRPC to Muster's agents, or to any other
// server of the Open Inference Protocol. An agent's gateway is this package's [Gateway].
//
// In come requests with tensors, which are made of slices without a copy; out come responses whose
// outputs can be viewed as slices in the same way. A [Client] sends each query to one of its
// servers. If a server is an agent of a fleet, the client finds the other agents, asks the leader
// which of them is to serve a query, and sends the query straight there.
//
// The caller owns each Client and each Gateway, and closes it. A Client owns a goroutine that
// follows the fleet and one for the connection to each member. A Gateway owns one that keeps the
// stream to the leader, one that writes to it, one that watches whether the leader is silent, one
// that decides queries without a leader, and two for each member that it then asks. Close returns
// when all of these have ended. Queries run on their callers' goroutines. If the leader splits a
// query, its caller starts one more goroutine for each part but the first, and waits for them.
package client
