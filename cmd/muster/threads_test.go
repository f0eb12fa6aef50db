package main

import (
	"runtime"
	"testing"
)

// TestThreads: runs on all lanes leave threads for the network, and one lane changes nothing where
// there are processors beside it.
func TestThreads(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []struct {
		executor               string
		processors, lanes, all int
	}{
		{"onnx", 1, 1, 2}, {"onnx", 2, 1, 2}, {"onnx", 2, 2, 3}, {"onnx", 16, 1, 16},
		{"onnx", 16, 16, 24}, {"emulated", 16, 16, 1},
	} {
		runtime.GOMAXPROCS(c.processors)
		if all := countGoThreads(c.executor, c.lanes); all != c.all {
			t.Errorf("%s, %d processors, %d lanes: %d threads, want %d", c.executor, c.processors,
				c.lanes, all, c.all)
		}
	}
}
