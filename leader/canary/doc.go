// Package canary decides about the versions of a model: which version a query gets that names none,
// and whether a new version on trial, the canary, is taken back or promoted. It is pure.
//
// In come a [Rollout], which says what serves, and the counts of a [Trial]. Out go the version of a
// query ([Rollout.Version]), which follows from the query's id alone, and a [Verdict] on the canary
// ([Rule.Judge]). Gateways, leaders and workers choose versions by the same functions.
package canary
