// Package baselines has policies that are simpler than production's, on the interface
// [match.Chooser]: earliest deadline first, and those that queue a query at a lane as it arrives,
// such as round robin and the power of two choices. Production is held against them.
//
// They stand on equal terms with production's policies: the matcher gives them the same latencies,
// drops and rejects the same queries, and keeps the same lanes full.
package baselines
