// Package rivals searches configurations as the papers' competitors do: random search, hill
// climbing and others. So planners can be compared with them by the number of evaluations.
//
// Each is a plan.Planner that ends when every configuration is evaluated or pruned. What counts is
// when it came to the best.
//
// They prune as the papers say. For the least cost (RIBBON, section 5.3) they leave out what has
// fewer of each type than a configuration that misses the target, and what has more of each than
// one that meets it. Fewer of each type is meant to the letter: random search then needs about as
// many evaluations on the published tables as its authors'; with "no more" it would need a fifth.
// Hill climbing and response surface leave out what costs more than one that meets the target
// instead. For the most throughput (KAIROS, section 8.3) they leave out all sub-configurations of
// what was evaluated.
package rivals
