package serve

import (
	"fmt"
	"os"
	goruntime "runtime"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if raceDetector {
		goruntime.GOMAXPROCS(1) // as in the agent's TestMain, which says why
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "serve: leaked:", err)
			code = 1
		}
	}
	os.Exit(code)
}
