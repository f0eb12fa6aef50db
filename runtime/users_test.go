package runtime_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// isUserInput says which inputs of the zoo's rankers are of users.
func isUserInput(name string) bool { return strings.HasPrefix(name, "user_") }

// withUsers returns v with the roles of its inputs by their names, and without any.
func withUsers(t testing.TB, v *models.Version) (ranker, plain *models.Version) {
	t.Helper()
	a, b := *v, *v
	a.Inputs, b.Inputs = slices.Clone(v.Inputs), slices.Clone(v.Inputs)
	a.Outputs, b.Outputs = slices.Clone(v.Outputs), slices.Clone(v.Outputs)
	var r roles.Roles
	for i := range v.Inputs {
		role := roles.Row
		if isUserInput(v.Inputs[i].Name) {
			role = roles.User
		}
		a.Inputs[i].Role, b.Inputs[i].Role = role, ""
		r.Inputs = append(r.Inputs, roles.NamedRole{Name: v.Inputs[i].Name, Role: role})
	}
	for i := range v.Outputs {
		a.Outputs[i].Role, b.Outputs[i].Role = roles.Row, ""
		r.Outputs = append(r.Outputs, roles.NamedRole{Name: v.Outputs[i].Name, Role: roles.Row})
	}
	a.Roles, b.Roles = must(roles.Complete(r)), nil
	return &a, &b
}

// loadRanker loads a small ranker of the zoo: with its users' part cut out, and whole.
func loadRanker(t testing.TB, name string, scale zoo.Scale) (cut, whole runtime.Model,
	v *models.Version) {
	t.Helper()
	dir := t.TempDir()
	if _, err := zoo.Generate(t.Context(), dir, name, zoo.Options{Scale: scale,
		Seed: 1}); err != nil {
		t.Fatal(err)
	}
	v, err := models.ReadVersion(dir, name, 1)
	if err != nil {
		t.Fatal(err)
	}
	o, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, Cores: 1, Kernels: true,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ranker, plain := withUsers(t, v)
	whole, cut = load(t, o, plain), load(t, o, ranker)
	if !runtime.IsCut(cut) || runtime.IsCut(whole) {
		t.Fatal("the graph is not cut")
	}
	return cut, whole, plain
}

// rankerQuery returns a query of one user and rows candidates, as it is sent once and repeated.
func rankerQuery(t testing.TB, random *rand.Rand, v *models.Version, rows int) (once,
	repeated []tensor.Tensor) {
	t.Helper()
	inputs, err := runtime.RandomInputs(random, v, rows)
	if err != nil {
		t.Fatal(err)
	}
	once, repeated = slices.Clone(inputs), slices.Clone(inputs)
	for i, in := range inputs {
		if !isUserInput(in.Name) {
			continue
		}
		width := len(in.Data) / rows
		once[i].Shape = slices.Clone(in.Shape)
		once[i].Shape[0] = 1
		once[i].Data = in.Data[:width:width]
		repeated[i].Data = slices.Repeat(once[i].Data, rows)
	}
	return once, repeated
}

// scoresOf runs a query and returns its first output.
func scoresOf(t testing.TB, m runtime.Model, inputs []tensor.Tensor) []float32 {
	t.Helper()
	r, err := m.Run(context.Background(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	return slices.Clone(must(tensor.Values[float32](r.Outputs[0])))
}

func checkScores(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d scores, want %d", what, len(got), len(want))
	}
	largest := 0.
	for _, v := range want {
		largest = max(largest, math.Abs(float64(v)))
	}
	for i := range want {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= 1e-5*largest) {
			t.Fatalf("%s: score %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// TestCutOfRandomGraphs: random graphs of rows and users, cut in two, answer as whole ones do when
// users are repeated: one user, as many as rows, and several in one run. Most graphs of independent
// rows can be cut.
func TestCutOfRandomGraphs(t *testing.T) {
	o := runtimetest.Open(t)
	cuts, proven, divided := 0, 0, 0
	for seed := range uint64(300) {
		g := drawGraph(seed, true)
		v := write(t, &g.model, nil)
		s, err := onnx.ReadSignature(v.Path)
		if err != nil {
			t.Fatal(err)
		}
		if !s.Flow(nil).Independence().IsProven() {
			continue
		}
		proven++
		ranker, v := withUsers(t, v)
		cut, whole := load(t, o, ranker), load(t, o, v)
		if !runtime.IsCut(cut) {
			continue
		}
		cuts++
		if dividesProducts(t, ranker) {
			divided++
		}
		random := rand.New(rand.NewPCG(seed, 4))
		var queries [][]tensor.Tensor
		var all []float32
		for _, rows := range []int{1, 3, 4} {
			once, repeated := rankerQuery(t, random, v, rows)
			want := scoresOf(t, whole, repeated)
			what := fmt.Sprintf("seed %d, %d rows, ", seed, rows)
			checkScores(t, what+"once", scoresOf(t, cut, once), want)
			checkScores(t, what+"repeated", scoresOf(t, cut, repeated), want)
			queries, all = append(queries, once, repeated), append(all, slices.Repeat(want, 2)...)
		}
		r, err := runtime.RunJoined(context.Background(), cut, queries)
		if err != nil {
			t.Fatal(err)
		}
		checkScores(t, fmt.Sprintf("seed %d, joined", seed),
			must(tensor.Values[float32](r.Outputs[0])), all)
		r.Release()
	}
	t.Logf("%d of %d graphs of independent rows are cut, %d with a product in two", cuts, proven,
		divided)
	if cuts < proven*9/10 || divided < cuts/20 {
		t.Errorf("%d of %d graphs are cut, %d with a product in two", cuts, proven, divided)
	}
}

// dividesProducts reports whether the graph of v that is cut has a product in two: it slices
// weights, which these random graphs do not do themselves.
func dividesProducts(t *testing.T, v *models.Version) bool {
	t.Helper()
	g, err := onnx.ReadGraph(v.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.CutUsers(v.FlowRoles()); err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(g.Nodes, func(n onnx.Node) bool {
		return n.Op == "Slice" && strings.HasPrefix(n.Inputs[0], "constant_")
	})
}

// TestUserBesideScalar: what belongs to the query as a whole is left as it is.
func TestUserBesideScalar(t *testing.T) {
	port := func(name string, shape ...int64) onnx.ValueDescription {
		return onnx.ValueDescription{Name: name, DataType: tensor.FP32, Shape: shape}
	}
	m := &onnx.Model{
		Inputs: []onnx.ValueDescription{
			port("x", onnx.Dynamic, 2), port("user_x", onnx.Dynamic, 2), port("scale"),
		},
		Outputs: []onnx.ValueDescription{port("y", onnx.Dynamic, 2)},
		Nodes: []onnx.Node{
			{Op: "Add", Name: "sum", Inputs: []string{"x", "user_x"}, Outputs: []string{"sum"}},
			{Op: "Mul", Name: "y", Inputs: []string{"sum", "scale"}, Outputs: []string{"y"}},
		},
	}
	m.Inputs[2].Shape = []int64{}
	v, _ := withUsers(t, write(t, m, nil))
	v.Inputs[2].Role = roles.Query
	r := *v.Roles
	r.Inputs = slices.Clone(r.Inputs)
	r.Inputs[2].Role = roles.Query
	v.Roles = must(roles.Complete(r))
	cut := load(t, runtimetest.Open(t), v)
	if !runtime.IsCut(cut) {
		t.Fatal("the graph is not cut")
	}
	got := scoresOf(t, cut, []tensor.Tensor{
		must(tensor.Of("x", []float32{1, 2, 3, 4}, 2, 2)),
		must(tensor.Of("user_x", []float32{10, 20}, 1, 2)),
		{Name: "scale", DataType: tensor.FP32, Shape: []int64{}, Data: floats(2)},
	})
	checkScores(t, "once", got, []float32{22, 44, 26, 48})

	v.Outputs[0].Role = roles.User
	if runtime.IsCut(load(t, runtimetest.Open(t), v)) {
		t.Error("the graph of a model with an output of users is cut, which gives it a row for each row")
	}
}

// TestRankersOfOneUser: rankers give the same scores for a user that is sent once, one that is
// repeated for each candidate, and several users in one run, as their whole graph does.
func TestRankersOfOneUser(t *testing.T) {
	for _, name := range zoo.Rankers() {
		t.Run(name, func(t *testing.T) {
			cut, whole, v := loadRanker(t, name, zoo.Small)
			random := rand.New(rand.NewPCG(3, 4))
			var queries [][]tensor.Tensor
			var all []float32
			for _, rows := range []int{1, 7, 100} {
				once, repeated := rankerQuery(t, random, v, rows)
				want := scoresOf(t, whole, repeated)
				if slices.Min(want) == slices.Max(want) && rows > 1 {
					t.Errorf("all scores are %v", want[0])
				}
				checkScores(t, "once", scoresOf(t, cut, once), want)
				checkScores(t, "repeated", scoresOf(t, cut, repeated), want)
				queries = append(queries, once)
				all = append(all, want...)
				if rows == 7 {
					queries = append(queries, repeated)
					all = append(all, want...)
				}
			}
			r, err := runtime.RunJoined(context.Background(), cut, queries)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Release()
			checkScores(t, "joined", must(tensor.Values[float32](r.Outputs[0])), all)
		})
	}
}
