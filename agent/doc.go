// Package agent is one node of Muster: its settings, its identity and its life (start, serve, drain,
// stop). It makes the rooms and wires them together; what they do is theirs:
//
//   - members: who is there, what each holds and how busy it is
//   - worker: models, lanes, and what the agent does for others
//   - serve: what clients, other agents and SDKs call
//   - outcome: what an agent tells of an error
//
// The half that takes part in elections, and leads when elected, is in this package still (leader.go
// and what it names); it and the rooms know each other by the interfaces in seam.go alone.
//
// A query enters by gRPC or REST, becomes an [oip.Request], and takes one way whatever the protocol:
// validate against the model's signature, wait in the lane queue, run, answer. A cluster of one is
// gateway and worker in one process, without sockets between them.
package agent
