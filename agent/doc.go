// Package agent is one node of a Muster fleet: its settings, its name, and its life from start
// through drain to stop.
//
// A caller gives [New] a [Config] and calls [Agent.Run] with a context. Run serves until the
// context ends or somebody asks the agent to drain, and returns when the agent has stopped. The
// agent is made of parts, each in a package of its own. Package agent makes the parts and connects
// them; no part imports package agent:
//
//   - members: the fleet: its members, the models that each holds, and each one's load
//   - worker: the models, the lanes, and the queries that run on them
//   - lead: elections, and the leader while this agent is elected
//   - serve: the calls of clients, of other agents and of SDKs
//   - outcome: the gRPC code, the HTTP status and the metrics' label of each error
//
// A query arrives by gRPC or REST and becomes an [oip.Request]. The gateway (package client) has an
// agent of the fleet answer the query. An agent that is alone hands the query to its own worker,
// without a socket between them.
//
// Agent.Run owns one goroutine for each server and for each part that has a Run method. Three more
// goroutines find out the instance type, forget what belongs to removed versions and agents, and
// wait for the first models to load. All of them have ended when Run returns, except queries and
// model loads that cannot be interrupted; Run's error then says so.
package agent
