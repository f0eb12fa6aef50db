// Package fleetplan plans a fleet as a whole: how many machines of each type there are, which
// variants each holds, and which variant on which type answers which queries.
//
// In comes a Problem: the demand by family and batch size, the variants with their accuracies,
// sizes and run times, the types with their prices, limits and memory. Out comes a Plan. What is
// best is ordered: first the share of the queries that is served in time, then the families' target
// accuracies, then dollars and accuracy, which [Problem.AccuracyUSDPerHour] weighs.
//
// Without variants it is the fluid program of KAIROS (leader/fluid); with fixed machines that hold
// one variant each, the placement program of Proteus (its Equation 1); with pairs of models on
// partitions and a price for each server, Hera's cluster schedule.
//
// # Method
//
// Holding a variant takes memory and no time, so in the linear relaxation memory does not count:
// machines of a type share their time among all variants. The relaxation is solved by column
// generation (Dantzig and Wolfe, Operations Research 8, 1960). A column is one way to answer a
// family: each of its bins goes wholly to one variant on one type, or is left unserved. Only the
// types' time and money tie families together, so the master program has a row a type and a few a
// family, whatever the number of bins and variants (master.go). Whole numbers of machines come from
// branch and bound (counts.go). The relaxation is that of machines which hold all variants, so its
// bound holds for any memory.
//
// Where memory bounds what machines hold, only maximal sets of variants need to be looked at. The
// placement program (leader/place) says what given machines hold; machines are added while that is
// worth their price, and taken away; then branch and bound, with a count for each type and set,
// looks for better ones (hold.go).
//
// A Capacity says the other way round which multiple of a demand given machines carry.
//
// Partitions that run side by side are layouts of a type, with the run times that variants have
// beside each other; what Hera's scheduler chooses among (leader/place) is such a problem.
//
// The package is pure: no goroutine, no clock, no randomness.
package fleetplan
