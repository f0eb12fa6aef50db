// Package plan decides which fleet to rent: how many instances of each type.
//
// In comes a [Problem]: profiles, demand, QoS target and prices, and whether the most throughput
// for a budget is asked for (KAIROS) or the least cost for a load (RIBBON). A [Planner] answers
// with ranked plans. An [Evaluator] says what a configuration is worth: an analytic bound, a
// simulation, a published table, or the live fleet. Planners differ in how many evaluations they
// need; [Log] counts them.
//
// The package is pure: it starts no goroutine, reads no clock and writes no log. Its randomness
// comes from a *rand.Rand that the caller gives.
package plan
