// Package regimes is a benchmark of decisions in virtual time: what each policy makes of the same
// queries, in one regime of load, models, latencies, network and faults after the other.
//
// A [Regime] is data; [List] has them all. [Run] runs one under a policy on the fleet of package
// sim/fleet, gateways, elections and network included. [Broken] holds a regime's results against
// the rule that no baseline may do better than the policy that production uses.
package regimes
