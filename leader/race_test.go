//go:build race

package leader

func init() { raceDetector = true }
