// Package planners has the search methods with which the papers compare theirs: random search, hill
// climbing and others. Planners are compared with them by the number of evaluations.
//
// Each [Rival] is a plan.Planner that ends when every configuration is evaluated or pruned. The
// number to compare is that of the evaluations until it evaluated the best configuration.
//
// They prune as the papers say. For the least cost (RIBBON, section 5.3) they prune configurations
// with fewer instances of every type than one that misses the target, and those with more of every
// type than one that meets it. "Fewer" is strict: random search then needs about as many
// evaluations on the published tables as the authors report; with "no more" it would need a fifth.
// Instead of the second rule, hill climbing and response surface prune configurations dearer than
// one that meets the target. For the most throughput (KAIROS, section 8.3) all methods prune the
// sub-configurations of evaluated ones.
package planners
