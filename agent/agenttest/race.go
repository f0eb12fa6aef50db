//go:build race

package agenttest

// RaceDetector says whether the race detector is on.
const RaceDetector = true
