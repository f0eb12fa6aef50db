package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// An adder is an executor whose models add up their inputs, and note what happens to them.
type adder struct {
	loads, closed int
	given         [][]tensor.Tensor // by run
	made          []tensor.Tensor
	released      []int // runs
	fail          string
}

func (a *adder) Info() Info { return Info{} }

func (a *adder) Load(_ context.Context, v *models.Version) (Model, error) {
	if v.Model == a.fail {
		return nil, errors.New("does not load")
	}
	a.loads++
	return &sum{a, v}, nil
}

type sum struct {
	of *adder
	v  *models.Version
}

func (s *sum) Run(_ context.Context, inputs []tensor.Tensor) (*Result, error) {
	a := s.of
	if s.v.Model == "broken" {
		return nil, errors.New("does not run")
	}
	run := len(a.given)
	a.given = append(a.given, slices.Clone(inputs))
	out := tensor.Tensor{Name: "y", DataType: tensor.Uint8, Shape: []int64{1}, Data: []byte{0}}
	for _, in := range inputs {
		out.Data[0] += in.Data[0]
	}
	a.made = append(a.made, out)
	return &Result{
		Outputs: []tensor.Tensor{out}, release: func() { a.released = append(a.released, run) },
	}, nil
}

func (s *sum) Close() error {
	s.of.closed++
	return nil
}

func bytePort(name string) models.TensorSpec {
	return models.TensorSpec{Name: name, DataType: tensor.Uint8, Shape: []int64{models.Dynamic}}
}

// one is a step that runs a model with one or two inputs.
func one(model, out string, in ...string) models.Step {
	v := &models.Version{Model: model, Number: 1, Outputs: []models.TensorSpec{bytePort("y")}}
	for i := range in {
		v.Inputs = append(v.Inputs, bytePort(fmt.Sprint("x", i)))
	}
	return models.Step{Version: v, Inputs: in, Outputs: []string{out}}
}

// TestEnsemble: the steps run in turn, each on the very tensors that those before have made, whose
// memory is given back as soon as nobody needs it.
func TestEnsemble(t *testing.T) {
	v := &models.Version{
		Model: "e", Number: 1, Inputs: []models.TensorSpec{bytePort("a"), bytePort("b")},
		Outputs: []models.TensorSpec{bytePort("sum"), bytePort("twice")},
		Steps: []models.Step{
			one("m", "ab", "a", "b"), one("n", "aab", "a", "ab"), one("m", "sum", "aab", "b"),
			one("n", "twice", "ab", "ab"), one("o", "", "b"),
		},
	}
	x := &adder{}
	m, err := loadEnsemble(t.Context(), x, v)
	if err != nil {
		t.Fatal(err)
	}
	if x.loads != 3 {
		t.Errorf("%d models are loaded, want 3: each once", x.loads)
	}
	r, err := m.Run(t.Context(), []tensor.Tensor{
		{Name: "a", DataType: tensor.Uint8, Shape: []int64{1}, Data: []byte{1}},
		{Name: "b", DataType: tensor.Uint8, Shape: []int64{1}, Data: []byte{10}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		name  string
		value byte
	}{{"sum", 22}, {"twice", 22}} {
		if got := r.Outputs[i]; got.Name != want.name || got.Data[0] != want.value {
			t.Errorf("output %d is %q = %d, want %q = %d", i, got.Name, got.Data[0], want.name,
				want.value)
		}
	}
	for _, same := range []struct{ run, input, made int }{
		{1, 1, 0}, {2, 0, 1}, {3, 0, 0}, {3, 1, 0},
	} {
		if in := x.given[same.run][same.input]; &in.Data[0] != &x.made[same.made].Data[0] ||
			in.Name != fmt.Sprint("x", same.input) {
			t.Errorf("step %d gets %q in other memory than step %d has made", same.run+1, in.Name,
				same.made+1)
		}
	}
	if got := x.released; !slices.Equal(got, []int{1, 0, 4}) {
		t.Errorf("before Release the tensors of runs %v are given back, want [1 0 4]", got)
	}
	r.Release()
	r.Release()
	if got := x.released[3:]; !slices.Equal(got, []int{2, 3}) {
		t.Errorf("by Release the tensors of runs %v are given back, want [2 3]", got)
	}
	if err := m.Close(); err != nil || x.closed != 3 {
		t.Errorf("%d models are closed, want 3; %v", x.closed, err)
	}
}

// TestEnsembleFails: a step that fails is named, and leaves nothing behind.
func TestEnsembleFails(t *testing.T) {
	v := &models.Version{
		Model: "e", Number: 1, Path: "e/config.pbtxt", Inputs: []models.TensorSpec{bytePort("a")},
		Outputs: []models.TensorSpec{bytePort("z")},
		Steps: []models.Step{
			one("m", "b", "a"), one("broken", "c", "b"), one("o", "z", "b", "c"),
		},
	}
	x := &adder{}
	m, err := loadEnsemble(t.Context(), x, v)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Run(t.Context(), []tensor.Tensor{{DataType: tensor.Uint8, Data: []byte{1}}})
	if err == nil || !strings.Contains(err.Error(), "run e version 1, step 2: does not run") {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(x.released, []int{0}) {
		t.Errorf("the tensors of runs %v are given back, want those of run 0", x.released)
	}
	x = &adder{fail: "broken"}
	if _, err = loadEnsemble(t.Context(), x, v); err == nil ||
		!strings.Contains(err.Error(), "e/config.pbtxt: does not load") || x.closed != 1 {
		t.Errorf("got %v with %d models closed, want an error with the path, and 1", err, x.closed)
	}
}
