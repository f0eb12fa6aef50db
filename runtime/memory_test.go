package runtime_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// wide is a model that takes 1 MiB for each row while it runs, and answers with the row's value.
func wide(t testing.TB) *models.Version {
	const width = 1 << 18
	weights := make([]float32, width)
	for i := range weights {
		weights[i] = 1. / width
	}
	return write(t, &onnx.Model{
		Name: "wide",
		Inputs: []onnx.ValueDescription{{Name: "x", DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic, 1}}},
		Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic, 1}}},
		Nodes: []onnx.Node{
			{Op: "MatMul", Name: "widen", Inputs: []string{"x", "w"}, Outputs: []string{"wide"}},
			{Op: "ReduceSum", Name: "narrow", Inputs: []string{"wide", "axes"}, Outputs: []string{
				"y",
			}},
		},
		Initializers: []onnx.Initializer{
			{Name: "w", DataType: tensor.FP32, Shape: []int64{1, width}, Data: floats(weights...)},
			{Name: "axes", DataType: tensor.Int64, Shape: []int64{1}, Data: ints(1)},
		},
	}, nil)
}

// memoryEnv has a test run in a process whose memory is limited.
const memoryEnv = "MUSTER_TEST_MEMORY"

// A query whose intermediate results do not fit into memory fails, and those after it are answered,
// whichever model they are for.
func TestFailedAllocation(t *testing.T) {
	library := runtimetest.Library(t)
	if os.Getenv(memoryEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFailedAllocation$", "-test.v")
		cmd.Env = append(os.Environ(), memoryEnv+"=1", "MUSTER_ONNXRUNTIME_LIB="+library)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "all steps done") {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	v := wide(t)
	v.Config.RowsIndependent = false // or it runs in pieces that fit
	first, second := load(t, runtimetest.Open(t), v), load(t, runtimetest.Open(t), v)
	query := func(m runtime.Model, batch int) error {
		x := make([]float32, batch)
		for i := range x {
			x[i] = 1
		}
		r, err := m.Run(context.Background(), []tensor.Tensor{
			must(tensor.Of("x", x, int64(batch), 1)),
		})
		if err != nil {
			return err
		}
		defer r.Release()
		if y := must(tensor.Values[float32](r.Outputs[0])); len(y) != batch || y[batch-1] < .99 ||
			y[batch-1] > 1.01 {
			return fmt.Errorf("got %d rows, the last one %v", len(y), y[len(y)-1])
		}
		return nil
	}
	for _, m := range []runtime.Model{first, second} {
		if err := query(m, 1); err != nil {
			t.Fatal(err)
		}
	}
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(statm), &pages); err != nil {
		t.Fatal(err)
	}
	limit := pages*uint64(os.Getpagesize()) + 1<<30
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		model runtime.Model
		batch int // as many MiB
		fits  bool
	}{
		{first, 4096, false}, {first, 1, true}, {first, 600, true},
		{second, 1, true}, {second, 600, true}, // which the first must not keep from it
		{second, 4096, false}, {first, 4096, false}, {second, 600, true}, {first, 600, true},
	} {
		if err := query(step.model, step.batch); (err == nil) != step.fits {
			t.Errorf("step %d, %d MiB: got error %v", i, step.batch, err)
		}
	}
	t.Log("all steps done")
}
