// Package agent is one node of Muster: it owns the servers, the goroutines and
// the life of the process (start, serve, drain, stop), and translates between
// the packages that know nothing of each other. It decides nothing about
// where a query runs beyond this machine.
//
// A query enters by gRPC or REST, becomes an [oip.Request], and takes one way
// whatever the protocol: validate against the model's signature, wait in the
// lane queue, run, answer. A cluster of one is gateway and worker in one
// process, without sockets between them.
package agent
