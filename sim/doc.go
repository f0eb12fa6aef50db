// Package sim is a discrete-event simulator of a fleet, in virtual time. What decides and what
// orders in it is what does so in production:
//
//   - A leader's policy is decided by [leader.State], all that a leader does: it learns how far ahead
//     to decide, counts queries by gateway, and turns away what it has no room for. That holds for each
//     policy that an agent can be given, horizon and kairos, fcfs, clockwork and the simple ones, and
//     for drs, whose threshold is searched here and never set on an agent.
//   - Lanes take queries in the order of runtime/queue.
//   - The policy priced has no leader: gateways decide by match.Leaderless.
//   - With faults the whole fleet is simulated, by package sim/fleet: elections, a [leader.State] each
//     term, and gateways that go on without a leader.
//
// Two things are no code of production, for nothing in production does them: the policy oracle,
// which knows the future, and [FCFS], which makes tables as RIBBON's authors did.
//
// A query that is offered again (its lane refused it, or is lost or overdue to the leader) is sent
// again as in production: an attempt under way goes on until there is another lane, and is then cut
// off; the first answer counts. What is left out of a run without faults is what goes wrong, and so
// links, greetings and elections; a lane that the leader asks what it has says nothing, for it
// loses nothing. What latencies are is known, not learned.
//
// A run is a pure function of its Config: the same configuration and seed give
// the same result to the byte. Nothing here reads a clock; the wall time that
// decisions cost is measured with a clock handed in, and is no part of the
// deterministic result.
//
// Service times come from match.Latencies: measured samples, a latency
// profile with its noise, or a fixed latency. Every query carries its own
// uniform number, and the service time is that quantile of the latencies where
// it runs; so all policies, pools and rates are compared on the same queries
// (common random numbers).
package sim
