package runtime_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
		Name:   "gathered",
		Inputs: []onnx.Port{{Name: "ids", DataType: tensor.Int64, Shape: []int64{onnx.Dynamic}}},
		Outputs: []onnx.Port{
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
