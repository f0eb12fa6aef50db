// Package agent is one node of Muster: its settings, its identity and its life, from start to drain
// and stop.
//
// In come a [Config], by [New], and a context, by [Agent.Run], which returns when the agent has
// stopped. The agent makes its rooms and wires them together. Each room takes the fields that it
// needs, and none of them sees the agent:
//
//   - members: who is in the fleet, what each holds and how busy it is
//   - worker: models, lanes, and what the agent does for others
//   - lead: elections, and the leader while this agent is elected
//   - serve: what clients, other agents and SDKs call
//   - outcome: what an agent tells of an error
//
// A query comes in by gRPC or REST and becomes an [oip.Request]. The gateway (package client) has
// the fleet answer it; an agent that is alone gives it to its own worker, without a socket between.
//
// Agent.Run owns one goroutine for each server and each room that has a Run, and three more: one
// learns the instance type, one forgets what is gone, and one waits for the first models. All have
// ended when it returns, but for queries and loads that do not stop; its error then says so.
package agent
