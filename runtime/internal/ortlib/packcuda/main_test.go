package main

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/runtime/internal/ortlib"
)

const library = "onnxruntime/capi/libonnxruntime.so." + ortlib.Version

// A wheel has libraries, by their paths, with what they need, and other files.
type wheel map[string][]string

// world is a folder with pip's list and wheels, which tests change.
func world() map[string]wheel {
	return map[string]wheel{
		"onnxruntime_gpu-1.30.0-cp312.whl": {
			"onnxruntime/LICENSE": nil,
			library:               {"libc.so.6"},
			"onnxruntime/capi/libonnxruntime_providers_shared.so":   nil,
			"onnxruntime/capi/libonnxruntime_providers_cuda.so":     {"libcudart.so.13", "libcuda.so.1"},
			"onnxruntime/capi/libonnxruntime_providers_tensorrt.so": {"libnvinfer.so.10"},
		},
		"nvidia_cuda_runtime-13.0.96-py3.whl": {
			"nvidia/cu13/lib/libcudart.so.13":        {"libm.so.6"},
			"x.dist-info/licenses/License.txt":       nil,
			"nvidia/cu13/include/cuda_runtime_api.h": nil,
		},
	}
}

const list = `# a comment
onnxruntime-gpu==1.30.0 \
    --hash=sha256:00
nvidia-cuda-runtime==13.0.96 \
    --hash=sha256:01
`

// write writes pip's list and the wheels into a folder.
func write(t *testing.T, wheels map[string]wheel) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "list"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, members := range wheels {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		z := zip.NewWriter(f)
		for path, needs := range members {
			content := []byte("text")
			if strings.Contains(path, ".so") {
				content = compile(t, needs)
			}
			w, err := z.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(content); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// compile returns a shared library that needs others.
func compile(t *testing.T, needs []string) []byte {
	t.Helper()
	dir := t.TempDir()
	gcc := func(name string, with ...string) string {
		out := filepath.Join(dir, name)
		args := append([]string{"-shared", "-nostdlib", "-Wl,--no-as-needed", "-Wl,-soname," + name,
			"-o", out, "-x", "c", "/dev/null", "-x", "none"}, with...)
		if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return out
	}
	var needed []string
	for _, n := range needs {
		needed = append(needed, gcc(n))
	}
	content, err := os.ReadFile(gcc("it.so", needed...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestPack(t *testing.T) {
	dir := write(t, world())
	to := filepath.Join(dir, "to")
	if err := os.MkdirAll(filepath.Join(to, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := pack(dir, filepath.Join(dir, "list"), to); err != nil {
		t.Fatal(err)
	}
	var got []string
	entries, err := os.ReadDir(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	want := []string{"libcudart.so.13", "libonnxruntime.so." + ortlib.Version,
		"libonnxruntime_providers_cuda.so", "libonnxruntime_providers_shared.so", "licenses",
		"requirements.txt"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, name := range []string{"onnxruntime-gpu/LICENSE", "nvidia-cuda-runtime/License.txt"} {
		if _, err := os.Stat(filepath.Join(to, "licenses", name)); err != nil {
			t.Error(err)
		}
	}
}

// TestPackRefuses: what is not complete is not made, and what was there stays.
func TestPackRefuses(t *testing.T) {
	const runtime = "nvidia_cuda_runtime-13.0.96-py3.whl"
	for want, change := range map[string]func(map[string]wheel){
		"libonnxruntime_providers_cuda.so needs libcudart.so.13": func(w map[string]wheel) {
			delete(w[runtime], "nvidia/cu13/lib/libcudart.so.13")
		},
		"not complete: libonnxruntime.so." + ortlib.Version: func(w map[string]wheel) {
			delete(w["onnxruntime_gpu-1.30.0-cp312.whl"], library)
		},
		runtime + " has no licence": func(w map[string]wheel) {
			delete(w[runtime], "x.dist-info/licenses/License.txt")
		},
		"has 0 files nvidia_cuda_runtime-13.0.96-*.whl, want one": func(w map[string]wheel) {
			delete(w, runtime)
		},
	} {
		wheels := world()
		change(wheels)
		dir := write(t, wheels)
		to := filepath.Join(dir, "to")
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		err := pack(dir, filepath.Join(dir, "list"), to)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
		if left, _ := filepath.Glob(to + "*"); !slices.Equal(left, []string{to}) {
			t.Errorf("after %q there are %v, want what was there", want, left)
		}
	}
}

// TestRequirements: the committed list is of the version that is embedded, and each file has a sum.
func TestRequirements(t *testing.T) {
	text, err := os.ReadFile("../../../../scripts/requirements-cuda.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := required(string(text))
	if !slices.Contains(all, requirement{"onnxruntime-gpu", ortlib.Version}) {
		t.Errorf("got %v, want ONNX Runtime %s", all, ortlib.Version)
	}
	if sums := strings.Count(string(text), "--hash=sha256:"); sums != len(all) || len(all) < 5 {
		t.Errorf("got %d sums of %d files", sums, len(all))
	}
}
