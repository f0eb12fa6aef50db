// Package plan decides which fleet to buy: from profiles, demand, QoS target and prices, how many instances of each type.
//
// A [Problem] says what is asked: the most throughput for a budget (KAIROS) or the least cost for a load (RIBBON). A [Planner] answers with
// ranked plans. What a configuration is really worth an [Evaluator] says: an analytic bound, a simulation, a published table, or
// the live fleet; planners differ in how many evaluations they need, and [Log] counts them.
//
// The package is pure: it reads no clock and writes no log, and what is random comes from a *rand.Rand handed in.
package plan
