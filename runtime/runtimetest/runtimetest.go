// Package runtimetest finds and opens the real ONNX Runtime library for tests.
package runtimetest

import (
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"

	"github.com/muster-serve/muster/runtime"
)

// Library returns the path of an ONNX Runtime library: the value of MUSTER_ONNXRUNTIME_LIB, or the
// library that `make onnxruntime` has written to the build folder. If there is neither, it skips
// the test, or fails it if CI is "true" or REQUIRE_ONNXRUNTIME is set.
func Library(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("MUSTER_ONNXRUNTIME_LIB"); path != "" {
		return path
	}
	platform := goruntime.GOOS + "-" + goruntime.GOARCH
	found, _ := filepath.Glob(filepath.Join(repositoryRoot(t), "build/onnxruntime", platform,
		"libonnxruntime.so.*"))
	if len(found) > 0 {
		return found[len(found)-1]
	}
	const missing = "needs the ONNX Runtime library: run `make onnxruntime`, or name one in " +
		"MUSTER_ONNXRUNTIME_LIB"
	if os.Getenv("CI") == "true" || os.Getenv("REQUIRE_ONNXRUNTIME") != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// began is the folder of the package under test, in which go test starts the test binary.
var began, _ = os.Getwd()

// repositoryRoot returns the repository's folder. It does not use the paths of source files, which
// -trimpath removes.
func repositoryRoot(t testing.TB) string {
	for dir := began; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatalf("no folder above %q has a go.mod", began)
	return ""
}

// Open returns the ONNX executor on the CPU for one lane with all cores. It uses the library that
// [Library] finds.
func Open(t testing.TB) *runtime.ONNX {
	t.Helper()
	o, err := runtime.OpenONNX(runtime.Config{LibraryPath: Library(t), Provider: runtime.CPU})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// OpenCard returns the executors on the machine's card and on its CPU with all cores, both of the
// CUDA build that MUSTER_CUDA_LIB names. cfg says the rest. It skips the test without one.
func OpenCard(t testing.TB, cfg runtime.Config) (card, cpu *runtime.ONNX) {
	t.Helper()
	cfg.LibraryPath = os.Getenv("MUSTER_CUDA_LIB")
	if cfg.LibraryPath == "" {
		t.Skip("needs a card, and the path of ONNX Runtime's CUDA build in MUSTER_CUDA_LIB")
	}
	open := func(p runtime.ExecutionProvider) *runtime.ONNX {
		cfg.Provider = p
		o, err := runtime.OpenONNX(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	return open(runtime.CUDA), open(runtime.CPU)
}
