package serve

import (
	goruntime "runtime"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if raceDetector {
		goruntime.GOMAXPROCS(1) // as in the agent's TestMain, which says why
	}
	goleak.VerifyTestMain(m)
}
