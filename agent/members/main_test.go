package members

import (
	goruntime "runtime"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if raceDetector {
		goruntime.GOMAXPROCS(1) // for the reason in package agent's TestMain
	}
	goleak.VerifyTestMain(m)
}
