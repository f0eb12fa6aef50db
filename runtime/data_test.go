package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// gathered is a model that looks up rows of a large table in its data file, in which row
// i is all i.
func gathered(t testing.TB) *models.Version {
	const rows, dim = 4096, 64
	var table []float32
	for i := range rows * dim {
		table = append(table, float32(i/dim))
	}
	return gatheredFrom(t, rows, dim, floats(table...))
}

// gatheredFrom is a model that looks up rows of a table.
func gatheredFrom(t testing.TB, rows, dim int64, table []byte) *models.Version {
	return write(t, &onnx.Model{
		Name: "gathered",
		Inputs: []onnx.ValueDescription{{Name: "ids", DataType: tensor.Int64,
			Shape: []int64{onnx.Dynamic}}},
		Outputs: []onnx.ValueDescription{
			{Name: "rows", DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, dim}},
		},
		Nodes: []onnx.Node{
			{Op: "Gather", Name: "gather", Inputs: []string{"table", "ids"}, Outputs: []string{
				"rows",
			}},
		},
		Initializers: []onnx.Initializer{{Name: "table", DataType: tensor.FP32, Shape: []int64{
			rows, dim,
		},
			External: onnx.External{Location: "model.onnx.data", Length: int64(len(table))}}},
	}, map[string][]byte{"model.onnx.data": table})
}

// last looks up the last row of gathered's table.
func last(m runtime.Model) (float32, error) {
	r, err := m.Run(context.Background(), []tensor.Tensor{must(tensor.Of("ids", []int64{4095}, 1))})
	if err != nil {
		return 0, err
	}
	defer r.Release()
	return must(tensor.Values[float32](r.Outputs[0]))[0], nil
}

// What is written into a data file while it is served changes nothing, and cutting it short does
// not end the process.
func TestDataIsHeld(t *testing.T) {
	v := gathered(t)
	data := filepath.Join(filepath.Dir(v.Path), "model.onnx.data")
	m := load(t, runtimetest.Open(t), v)
	if maps, err := os.ReadFile("/proc/self/maps"); err != nil ||
		strings.Contains(string(maps), data) {
		t.Errorf("error %v, or the file is still mapped:\n%s", err, maps)
	}
	for _, spoil := range []func() error{
		func() error { return os.WriteFile(data, make([]byte, 4096*64*4), 0o644) },
		func() error { return os.Truncate(data, 0) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if got, err := last(m); got != 4095 || err != nil {
			t.Errorf("got %v, %v", got, err)
		}
	}
}

// A file that two loads have mapped stays so until one of them is closed, and both answer.
func TestDataOfTwoLoads(t *testing.T) {
	v := gathered(t)
	x, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, MapData: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	first, second := load(t, x, v), load(t, runtimetest.Open(t), v)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := last(second); got != 4095 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	load(t, runtimetest.Open(t), v) // beside the second, which is still mapped
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

// busEnv has the test binary serve the model in a folder from its mapped files, and
// cut its data short.
const busEnv = "MUSTER_TEST_BUS"

func dieOfBusError(path string) {
	x, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: os.Getenv("MUSTER_ONNXRUNTIME_LIB"), Provider: runtime.CPU, MapData: true,
	})
	if err != nil {
		panic(err)
	}
	v, err := models.ReadVersion(filepath.Dir(filepath.Dir(filepath.Dir(path))), "m", 1)
	if err != nil {
		panic(err)
	}
	m, err := x.Load(context.Background(), v)
	if err != nil {
		panic(err)
	}
	if err := os.Truncate(filepath.Join(filepath.Dir(path), "model.onnx.data"), 4096); err != nil {
		panic(err)
	}
	fmt.Println(last(m))
	os.Exit(0)
}

// A process that dies of a file cut short says which, before Go says where.
func TestBusErrorIsNamed(t *testing.T) {
	v := gathered(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), busEnv+"="+v.Path,
		"MUSTER_ONNXRUNTIME_LIB="+runtimetest.Library(t))
	out, err := cmd.CombinedOutput()
	data := filepath.Join(filepath.Dir(v.Path), "model.onnx.data")
	for _, want := range []string{
		"muster: bus error: the file " + data + " was cut short", "SIGBUS",
	} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("got %v, want %q in\n%s", err, want, out)
		}
	}
}

// divided opens ONNX Runtime for one lane of two cores, whose models have a second session of one
// thread, with a log that fails the test when data stays mapped.
func divided(t *testing.T) *runtime.ONNX {
	t.Helper()
	return must(runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, Cores: 2, Divide: true,
		Kernels: true, Logger: slog.New(noWarnings{t}),
	}))
}

// noWarnings is a slog.Handler that fails a test of which something warns.
type noWarnings struct{ t *testing.T }

func (noWarnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (h noWarnings) WithAttrs([]slog.Attr) slog.Handler         { return h }
func (h noWarnings) WithGroup(string) slog.Handler              { return h }

func (h noWarnings) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	h.t.Error("logged: " + text)
	return nil
}

// isMapped reports whether this process has mapped a file.
func isMapped(file string) bool {
	return strings.Contains(string(must(os.ReadFile("/proc/self/maps"))), file)
}

// TestDataIsHeldByEachLoad: several loads of a model are made of the same files, as when these are
// written in place or a setting changes. Each answers as the files were then, and none maps them.
// Lanes of several cores have two sessions for each load.
func TestDataIsHeldByEachLoad(t *testing.T) {
	m, files := embedding()
	// A table of another node too, and dense weights, of which each session has its own.
	table := files["model.onnx.data"]
	m.Initializers[0].Data = nil
	m.Initializers[0].External = onnx.External{
		Location: "model.onnx.data", Offset: int64(len(table)), Length: 4 * 3 * 4,
	}
	files["model.onnx.data"] = append(slices.Clone(table), floats(denseWeights...)...)
	v := write(t, m, files)
	v.Inputs[1].IDBounds = []int64{10}
	data := filepath.Join(filepath.Dir(v.Path), "model.onnx.data")
	good := files["model.onnx.data"]
	x := divided(t)
	var loaded []runtime.Model
	for range 3 {
		if err := os.WriteFile(data, good, 0o644); err != nil {
			t.Fatal(err)
		}
		loaded = append(loaded, load(t, x, v))
		if isMapped(data) {
			t.Fatalf("load %d has the file mapped", len(loaded))
		}
		for _, spoil := range []func() error{
			func() error { return os.WriteFile(data, make([]byte, len(good)), 0o644) },
			func() error { return os.Truncate(data, 0) },
		} {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			for i, m := range loaded {
				dense, ids, inputs := embeddingInputs(3)
				for _, single := range []bool{false, true} {
					one := m
					if single {
						one = runtime.OnOneCore(m)
					}
					r, err := one.Run(t.Context(), inputs)
					if err != nil {
						t.Fatal(err)
					}
					want := embeddingScores(dense, ids)
					for k, y := range must(tensor.Values[float32](r.Outputs[0])) {
						if math.Abs(float64(y-want[k])) > 1e-3 {
							t.Fatalf("load %d, single %v: element %d is %v, want %v", i, single, k,
								y, want[k])
						}
					}
					r.Release()
				}
			}
		}
	}
}

// TestDataInFunctions: data that only a function of the model names, or a graph within one of its
// nodes, is held like other data. models/onnx/testdata/make.py wrote the model.
func TestDataInFunctions(t *testing.T) {
	const from = "../models/onnx/testdata/functions."
	repository := t.TempDir()
	dir := filepath.Join(repository, "m", "1")
	data := filepath.Join(dir, "functions.data")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for to, file := range map[string]string{"model.onnx": "onnx", "functions.data": "data"} {
		err := os.WriteFile(filepath.Join(dir, to), must(os.ReadFile(from+file)), 0o644)
		if err != nil {
			t.Fatal(err)
		}
	}
	m := load(t, divided(t), must(models.ReadVersion(repository, "m", 1)))
	if isMapped(data) {
		t.Error("the file is mapped")
	}
	if err := os.WriteFile(data, make([]byte, 32784), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, m := range []runtime.Model{m, runtime.OnOneCore(m)} {
		r, err := m.Run(t.Context(), []tensor.Tensor{
			must(tensor.Of("ids", []int64{3, 4095}, 2)), must(tensor.Of("odd", []int32{0, 1}, 2)),
		})
		if err != nil {
			t.Fatal(err)
		}
		got := must(tensor.Values[float32](r.Outputs[0]))
		if want := []float32{6, 6, 8190, 8190}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		r.Release()
	}
}

// A writer is a context that writes to a file when the load that it is for first asks whether it
// has ended.
type writer struct {
	context.Context
	once  *sync.Once
	write func()
}

func (w writer) Err() error {
	w.once.Do(w.write)
	return w.Context.Err()
}

// TestFilesThatChange: a load whose files are written meanwhile fails, and so do further sessions
// of a version whose files have been written: they would answer otherwise than the version does.
func TestFilesThatChange(t *testing.T) {
	v := gathered(t)
	x := divided(t)
	data := filepath.Join(filepath.Dir(v.Path), "model.onnx.data")
	good := must(os.ReadFile(data))
	put := func(b []byte) func() {
		return func() {
			if err := os.WriteFile(data, b, 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	ctx := writer{t.Context(), new(sync.Once), put(make([]byte, len(good)))}
	m, err := x.Load(ctx, v)
	wantError(t, err, data, "was written while it was being loaded")
	if m != nil || isMapped(data) {
		t.Errorf("got model %v, mapped %v", m, isMapped(data))
	}
	put(good)()
	m = load(t, x, v)
	part := must(runtime.NewPartition(runtime.PartitionConfig{
		LanesConfig: runtime.LanesConfig{Lanes: 1, Cores: 1},
	}))
	placedModel := must(part.Place(t.Context(), m))
	if err := placedModel.Close(); err != nil {
		t.Error(err)
	}
	ctx = writer{t.Context(), new(sync.Once), put(make([]byte, len(good)))}
	_, err = part.Place(ctx, m)
	wantError(t, err, data, "was written since the version was loaded")
	_, err = part.Place(t.Context(), m)
	wantError(t, err, data, "was written since the version was loaded")
	if got, err := last(m); got != 4095 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestCutShortWhileLoading: a file that is cut short while a load reads its mapping does not end
// the process, and the load learns of it.
func TestCutShortWhileLoading(t *testing.T) {
	runtimetest.Open(t) // sets the handler of bus errors
	page := os.Getpagesize()
	for _, name := range []string{"data", "of two\nlines"} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, bytes.Repeat([]byte{1}, 3*page), 0o644); err != nil {
			t.Fatal(err)
		}
		f := must(os.Open(file))
		memory := must(unix.Mmap(int(f.Fd()), 0, 3*page, unix.PROT_READ, unix.MAP_PRIVATE))
		end := runtime.GuardFiles(map[string]bool{file: true})
		whole := runtime.GuardFiles(map[string]bool{file + "2": true})
		if err := os.Truncate(file, int64(page)); err != nil {
			t.Fatal(err)
		}
		if memory[0] != 1 || memory[page+1] != 0 || memory[2*page] != 0 {
			t.Errorf("got %d, %d and %d, want 1 and zeros", memory[0], memory[page+1],
				memory[2*page])
		}
		wantError(t, end(), file, "was cut short while it was being loaded")
		if err := whole(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(unix.Munmap(memory), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWithout: what is mapped after and was not before, also where the kernel joined both.
func TestWithout(t *testing.T) {
	got := runtime.Without([][3]uintptr{{10, 20, 100}, {30, 60, 0}, {70, 80, 7}},
		[][3]uintptr{{12, 14, 102}, {30, 40, 0}, {50, 60, 20}, {70, 80, 7}, {80, 90, 0}})
	want := [][3]uintptr{{10, 12, 100}, {14, 20, 104}, {40, 50, 10}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
