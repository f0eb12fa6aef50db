//go:build race

package plan

func init() { raceDetector = true }
