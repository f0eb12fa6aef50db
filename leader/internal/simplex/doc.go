// Package simplex solves small linear programs: some tens of rows, and columns that have bounds.
// Placement and planning solve thousands of them in a search, so a program keeps its memory, counts
// its operations (budgets of searches are in operations, not in seconds), and gives a bound that
// holds whatever rounding did to the optimum.
//
// The package is pure: no goroutine, no clock, no randomness.
package simplex
