// Package sim is a discrete-event simulator of a fleet. It drives the very code
// that distributes queries in production (leader/match) and that orders them on
// lanes (runtime/queue) in virtual time, so what it shows of a policy is what the
// policy does.
//
// A query that is offered again (its lane refused it, or is lost or overdue to the
// matcher) is sent again as in production: an attempt under way goes on until there
// is another lane, and is then cut off; the first answer counts.
//
// With faults the whole fleet is simulated, by package sim/fleet: elections, the leader's state, and
// gateways that go on without one.
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
