// Package sim is a discrete-event simulator of a fleet, in virtual time.
//
// In comes a [Config]: models with their latencies, a pool, a policy, a load and faults. Out come a
// [Result] of one run, a [Report] over several seeds, or a [Throughput]. A run is a pure function
// of its Config: the same configuration and seed give the same result to the byte. Nothing here
// reads a clock; the wall time of decisions is measured with [Config.Clock] and is no part of that
// result.
//
// Package sim/fleet simulates the fleet: a leader, gateways, lanes, and the network between them.
// Production code makes the decisions and orders the queries:
//
//   - With a leader's policy, [leader.State] decides. It learns how far ahead to decide, counts
//     queries by gateway, and rejects queries for which it has no room. This holds for the policies
//     that an agent can have and for drs, whose threshold is searched only here.
//   - Gateways decide by client/queries when and where to send a query, and what its outcome is.
//   - Lanes take queries in the order of runtime/queue.
//   - The policy priced has no leader: gateways decide by inquire.State.
//   - The policies prequal and orca have none either: gateways decide by the rivals of package
//     sim/balancers, and lanes report by runtime/load.
//
// Without faults the fleet is settled: it begins led, with all links open, and nothing ends that. So
// there are no greetings and elections, nobody watches for silence, the leader is a host of its own,
// and a lane that the leader asks what it holds need not answer, because it loses nothing. With
// faults agents elect a leader, and there is a [leader.State] for each term; where the leader
// places models, each has a replanner of its own, which goes on from its predecessor's
// placements.
//
// Two parts are no fleet: the policy oracle, which knows the future, and [FCFS], which simulates as
// RIBBON's authors did for their tables. Latencies are known to the policy from the start, not
// learned.
//
// Service times come from match.Latencies: measured samples, a latency profile with its noise, or a
// fixed latency. Every query carries a uniform number, and its service time is that quantile of the
// latencies where it runs. So all policies, pools and rates are compared on the same queries
// (common random numbers).
//
// A run has one goroutine, its caller's. Functions that make several runs, such as [RunSeeds],
// [FindThroughput] and [Compare], start goroutines for them, which have ended when they return.
package sim
