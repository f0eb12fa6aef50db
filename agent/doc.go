// Package agent is one node of Muster: it owns the servers, the goroutines and
// the life of the process (start, serve, drain, stop), and translates between
// the packages that know nothing of each other.
//
// An agent has two halves, which know each other by the interfaces in seam.go: one takes part in elections
// and leads when elected (leader.go and what it names), the other serves: it knows the fleet
// (package members), is gateway for those who call it (infer.go) and works for others (package worker).
//
// A query enters by gRPC or REST, becomes an [oip.Request], and takes one way
// whatever the protocol: validate against the model's signature, wait in the
// lane queue, run, answer. A cluster of one is gateway and worker in one
// process, without sockets between them.
package agent
