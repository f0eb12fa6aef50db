package runtime_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/gpu/fakenvidia"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// openEnv has the test binary open a library and nothing else: a process has
// one library, so each case needs its own.
const openEnv = "MUSTER_TEST_OPEN"

func TestMain(m *testing.M) {
	if provider, path, ok := strings.Cut(os.Getenv(openEnv), ":"); ok {
		log := slog.New(slog.NewTextHandler(os.Stdout, nil))
		o, err := runtime.OpenONNX(runtime.Config{
			LibraryPath: path, Provider: runtime.ExecutionProvider(provider), Logger: log,
			GPUMemory: 1 << 30,
		})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(0)
		}
		fmt.Printf("info: %+v\n", o.Info())
		os.Exit(0)
	}
	if path := os.Getenv(busEnv); path != "" {
		dieOfBusError(path)
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, provider runtime.ExecutionProvider, path string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	home := t.TempDir()
	cmd.Env = append(os.Environ(), openEnv+"="+string(provider)+":"+path, "HOME="+home,
		"XDG_CACHE_HOME=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// With its telemetry on, the library keeps a database there of what it is to tell.
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("error %v, or %v was left in the home directory", err, left)
	}
	return string(out)
}

func TestOpenONNX(t *testing.T) {
	library := runtimetest.Library(t)
	out := open(t, runtime.CPU, library)
	for _, want := range []string{
		"msg=\"ONNX Runtime loaded\" version=1.30.0", "provider=cpu", "Library:" + library,
		"Fallback: ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("got %q, want it to contain %q", out, want)
		}
	}
	if n := strings.Count(out, "\n"); n != 2 {
		t.Errorf("got %d lines, want the log line and the info:\n%s", n, out)
	}
	out = open(t, runtime.Auto, library)
	if strings.Contains(out, "Provider:cuda") {
		t.Skip("this machine has a GPU and a library for it")
	}
	for _, want := range []string{"ONNX Runtime runs on the CPU", "Provider:cpu", "reason="} {
		if !strings.Contains(out, want) {
			t.Errorf("auto: got %q, want it to contain %q", out, want)
		}
	}
	out = open(t, runtime.CUDA, library)
	for _, want := range []string{"error: open ONNX Runtime: provider cuda: "} {
		if !strings.Contains(out, want) {
			t.Errorf("cuda: got %q, want it to contain %q", out, want)
		}
	}
}

func TestOpenONNXErrors(t *testing.T) {
	library := runtimetest.Library(t)
	dir := t.TempDir()
	data, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "missing.so"): "missing.so does not exist",
		dir:                              "is no shared library",
		file("empty.so", nil):            "empty.so is no shared library",
		file("text.so", bytes.Repeat([]byte("x"), 99)): "text.so is no shared library",
		file("short.so", data[:len(data)/2]):           "short.so is no shared library",
		file("arch.so", foreign(data)):                 "arch.so is no usable ONNX Runtime library",
		os.Args[0]:                                     "is no usable ONNX Runtime library",
	} {
		if out := open(t, runtime.CPU, path); !strings.HasPrefix(out,
			"error: open ONNX Runtime: library ") || !strings.Contains(out, want) ||
			!strings.Contains(out, path) {
			t.Errorf("%s: got %q, want it to contain %q", path, out, want)
		}
	}
}

// foreign makes an ELF library one for a machine that nobody has.
func foreign(library []byte) []byte {
	c := bytes.Clone(library)
	c[18], c[19] = 2, 0 // e_machine: SPARC
	return c
}

func TestOpenONNXOnce(t *testing.T) {
	a, b := runtimetest.Open(t), runtimetest.Open(t)
	if a.Info() != b.Info() {
		t.Errorf("got %+v, then %+v", a.Info(), b.Info())
	}
	_, err := runtime.OpenONNX(runtime.Config{LibraryPath: "/other.so"})
	wantError(t, err, "already loaded", "/other.so")
}

func TestConfigValidate(t *testing.T) {
	err := runtime.Config{Provider: "tpu", Cores: -1, Lanes: -2}.Validate()
	wantError(t, err, `provider "tpu"`, "cores -1", "lanes -2")
	wantError(t, runtime.Config{Cores: 2, Lanes: 3}.Validate(), "lanes 3", "2 cores")
	if err := (runtime.Config{}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestOpenFake has a fake driver with a card that does nothing, so everything up to the use of the
// card is real: what is found, what is loaded in which order, what is said.
func TestOpenFake(t *testing.T) {
	library := runtimetest.Library(t)
	driver, err := fakenvidia.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, variable := range driver.Environment() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	set := func(s fakenvidia.State) {
		if err := driver.Set(s); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(provider runtime.ExecutionProvider, library string, wants ...string) {
		t.Helper()
		out := open(t, provider, library)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s: got %q, want it to contain %q", provider, out, want)
			}
		}
	}
	const none = "NVIDIA driver 580.95.05 is there but finds no GPU"
	expect(runtime.Auto, library, "ONNX Runtime runs on the CPU", none, "Provider:cpu")
	expect(runtime.CUDA, library, "error: open ONNX Runtime: provider cuda: "+none)
	set(fakenvidia.State{Cards: []fakenvidia.Card{{UUID: "GPU-a", Name: "Fake"}}})
	expect(runtime.CUDA, library, "no CUDA build of ONNX Runtime: "+library+
		" has no libonnxruntime_providers_cuda.so beside it")

	built, err := filepath.Abs("../build/onnxruntime-cuda/linux-amd64/libonnxruntime.so.1.30.0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(built); err != nil {
		t.Skip("the rest needs `make onnxruntime CUDA=1`, 1.4 GB")
	}
	// CUDA itself finds that the fake lacks most of a driver.
	const unsupported = "the GPU failed: CUDA failure 36: API call is not supported in the " +
		"installed CUDA driver"
	expect(runtime.Auto, built, "ONNX Runtime runs on the CPU", unsupported, "Provider:cpu")
	expect(runtime.CUDA, built, "error: open ONNX Runtime: provider cuda with library "+built+": "+
		unsupported)
	set(fakenvidia.State{Driver: "535.183.01", CUDA: 12020,
		Cards: []fakenvidia.Card{{UUID: "GPU-a", Name: "Fake"}}})
	expect(runtime.Auto, built, "NVIDIA driver 535.183.01 supports CUDA 12.2, the library needs "+
		"13.x: install driver 580 or later", "Provider:cpu")
}
