// Package placements has the placements of other systems, to compare with package place: Clipper
// (NSDI 2017), Sommelier (SIGMOD 2022), INFaaS (ATC 2021), Proteus itself (ASPLOS 2024), the first
// three as Proteus's authors adapted them to scale accuracy, and SlackFit of SuperServe (NSDI
// 2025).
//
// Clipper holds the same always; Sommelier changes variants, and no agent's family; INFaaS decides
// by a greedy rule where [place.Solve] searches; SlackFit chooses a variant for each run by the time
// that is left. [Production] is what Muster's leader decides, on the same fleets.
//
// The package is pure. Only the simulator and tests import it.
package placements
