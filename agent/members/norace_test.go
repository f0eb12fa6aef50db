//go:build !race

package members

const raceDetector = false
