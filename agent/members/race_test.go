//go:build race

package members

const raceDetector = true
