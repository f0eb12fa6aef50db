// Package place decides what the agents of a fleet hold: how many agents of each instance type get
// which layout, so that the families' demand is served as well as it can be.
//
// In comes a Program: how many agents each type has, the demand by class, and the choices, which
// are layouts on types with the rates at which they serve. Out comes a Solution: counts by choice,
// the flow of queries that they serve, and a bound that says how far off the counts may be. The
// objective is lexicographic: the share of the demand that is served, then accuracy, then price,
// then changes; or fewest agents in place of accuracy.
//
// Solver.Solve takes steps rather than seconds, and a seed, so that the same program has the same
// solution on every machine. It solves the linear relaxation (relax.go), rounds it, climbs
// (climb.go), and then searches neighbourhoods by branch and bound (branch.go, search.go).
//
// The package is pure: no goroutine, no clock, no randomness but that of the seed.
package place
