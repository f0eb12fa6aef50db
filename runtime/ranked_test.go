package runtime_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// rankedPort makes a port with names for its dynamic dimensions.
func rankedPort(name string, kind tensor.DataType, dims ...any) onnx.ValueDescription {
	p := onnx.ValueDescription{Name: name, DataType: kind, Shape: []int64{}}
	for _, d := range dims {
		switch d := d.(type) {
		case int:
			p.Shape, p.Dims = append(p.Shape, int64(d)), append(p.Dims, "")
		case string:
			p.Shape, p.Dims = append(p.Shape, models.Dynamic), append(p.Dims, d)
		}
	}
	return p
}

// loadRanked loads a model of the given nodes with the settings of a model.yaml.
func loadRanked(t *testing.T, m onnx.Model, settings string) (*models.Version, runtime.Model) {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "m", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.Name = "m"
	for path, data := range map[string][]byte{
		"1/model.onnx": m.Marshal(), models.ConfigFile: []byte(settings),
	} {
		if err := os.WriteFile(filepath.Join(dir, "m", path), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v, err := models.ReadVersion(dir, "m", 1)
	if err != nil {
		t.Fatal(err)
	}
	model, err := runtimetest.Open(t).Load(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := model.Close(); err != nil {
			t.Error(err)
		}
	})
	return v, model
}

func tensorOf(t *testing.T, name string, values []float32, shape ...int64) tensor.Tensor {
	t.Helper()
	made, err := tensor.Of(name, values, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// answerOf runs a query on its own, and returns the values of its first output.
func answerOf(t *testing.T, model runtime.Model, inputs ...tensor.Tensor) []float32 {
	t.Helper()
	result, err := model.Run(t.Context(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	defer result.Release()
	values, err := tensor.Values[float32](result.Outputs[0])
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(values)
}

// rankers are graphs that take the user in different forms; all answer user * item of each row.
var rankers = map[string]struct {
	model    onnx.Model
	settings string
	merges   bool
}{
	"of either form": {onnx.Model{
		Inputs: []onnx.ValueDescription{
			rankedPort("user", tensor.FP32, "u", 2), rankedPort("items", tensor.FP32, "n", 2),
		},
		Outputs: []onnx.ValueDescription{rankedPort("y", tensor.FP32, "n", 2)},
		Nodes: []onnx.Node{
			{Op: "Mul", Name: "mul", Inputs: []string{"user", "items"}, Outputs: []string{"y"}},
		},
	}, "", true},
	"of a user for each row": {onnx.Model{
		Inputs: []onnx.ValueDescription{
			rankedPort("user", tensor.FP32, "n", 2), rankedPort("items", tensor.FP32, "n", 2),
		},
		Outputs: []onnx.ValueDescription{rankedPort("y", tensor.FP32, "n", 2)},
		Nodes: []onnx.Node{
			{Op: "Concat", Name: "both", Inputs: []string{"user", "items"},
				Outputs:    []string{"both"},
				Attributes: []onnx.Attribute{{Name: "axis", Value: int64(1)}}},
			{Op: "Split", Name: "apart", Inputs: []string{"both"}, Outputs: []string{"a", "b"},
				Attributes: []onnx.Attribute{{Name: "axis", Value: int64(1)}}},
			{Op: "Mul", Name: "mul", Inputs: []string{"a", "b"}, Outputs: []string{"y"}},
		},
	}, "requires: 2\nsent_once: [user]\n", true},
	"of one user": {onnx.Model{
		Inputs: []onnx.ValueDescription{
			rankedPort("user", tensor.FP32, "u", 2), rankedPort("items", tensor.FP32, "n", 2),
		},
		Outputs: []onnx.ValueDescription{rankedPort("y", tensor.FP32, "n", 2)},
		Nodes: []onnx.Node{ // the sum over the users is that of the one
			{Op: "ReduceSum", Name: "sum", Inputs: []string{"user", "axes"},
				Outputs: []string{"sum"}},
			{Op: "Mul", Name: "mul", Inputs: []string{"sum", "items"}, Outputs: []string{"y"}},
		},
		Initializers: []onnx.Initializer{{
			Name: "axes", DataType: tensor.Int64, Shape: []int64{1}, Data: make([]byte, 8),
		}},
	}, "", false},
}

// TestUserOnce: a user that is there once gives the answers of one that is there for each row,
// whatever the graph takes.
func TestUserOnce(t *testing.T) {
	for name, tt := range rankers {
		t.Run(name, func(t *testing.T) {
			_, model := loadRanked(t, tt.model, tt.settings+"rows_independent: true\n")
			items := tensorOf(t, "items", []float32{1, 2, 3, 4, 5, 6}, 3, 2)
			want := []float32{7, 16, 21, 32, 35, 48}
			if got := answerOf(t, model, tensorOf(t, "user", []float32{7, 8}, 1, 2),
				items); !slices.Equal(got, want) {
				t.Errorf("once: got %v, want %v", got, want)
			}
			if got := answerOf(t, model, tensorOf(t, "user", []float32{7, 8, 7, 8, 7, 8}, 3, 2),
				items); !slices.Equal(got, want) {
				t.Errorf("repeated: got %v, want %v", got, want)
			}
			if got := model.(interface{ MergesUsers() bool }).MergesUsers(); got != tt.merges {
				t.Errorf("merges users: %t, want %t", got, tt.merges)
			}
			_, err := model.Run(t.Context(), []tensor.Tensor{
				tensorOf(t, "user", []float32{7, 8, 9, 10}, 2, 2), items,
			})
			if err == nil || !strings.Contains(err.Error(), `input "user"`) ||
				!strings.Contains(err.Error(), "want 1") {
				t.Errorf("two users of three rows: got %v", err)
			}
		})
	}
}

// pooled is a model whose answer to a row is the sum of the rows of a table for its values, beside
// a number of the user.
func pooled() onnx.Model {
	table := make([]float32, 20)
	for i := range table {
		table[i] = float32(i)
	}
	w, err := tensor.Of("w", table, 10, 2)
	if err != nil {
		panic(err)
	}
	constant := func(name string, kind tensor.DataType, data []byte, shape ...int64) onnx.Initializer {
		return onnx.Initializer{Name: name, DataType: kind, Shape: shape, Data: data}
	}
	node := func(op, out string, in ...string) onnx.Node {
		n := onnx.Node{Op: op, Name: out, Inputs: in, Outputs: []string{out}}
		if op == "Concat" {
			n.Attributes = []onnx.Attribute{{Name: "axis", Value: int64(0)}}
		}
		return n
	}
	return onnx.Model{
		Inputs: []onnx.ValueDescription{
			rankedPort("user", tensor.FP32, "u", 2), rankedPort("tags_values", tensor.Int64,
				"total"),
			rankedPort("tags_lengths", tensor.Int64, "n"),
		},
		Outputs: []onnx.ValueDescription{rankedPort("y", tensor.FP32, "n", 2),
			rankedPort("of_user", tensor.FP32, "u", 2)},
		Nodes: []onnx.Node{
			node("Gather", "rows", "w", "tags_values"), node("CumSum", "sums", "rows", "axis"),
			node("Concat", "from_zero", "zero", "sums"), node("CumSum", "ends", "tags_lengths",
				"axis"),
			node("Sub", "starts", "ends", "tags_lengths"), node("Gather", "a", "from_zero", "ends"),
			node("Gather", "b", "from_zero", "starts"), node("Sub", "bags", "a", "b"),
			node("Add", "y", "bags", "user"), node("Neg", "of_user", "user"),
		},
		Initializers: []onnx.Initializer{
			constant("w", tensor.FP32, w.Data, 10, 2), constant("axis", tensor.Int64, make([]byte,
				8)),
			constant("zero", tensor.FP32, make([]byte, 8), 1, 2),
		},
	}
}

// TestRaggedMerged: queries with a user each and ragged features get from a merged run the answers
// that ONNX Runtime gives each of them alone.
func TestRaggedMerged(t *testing.T) {
	v, model := loadRanked(t, pooled(), "rows_independent: true\n")
	if want := (roles.Feature{
		Values: "tags_values", Form: roles.Lengths, Index: "tags_lengths", Per: roles.Row,
	}); len(v.Roles.Ragged) != 1 || v.Roles.Ragged[0] != want {
		t.Fatalf("the ragged features are %+v, want %+v", v.Roles.Ragged, want)
	}
	ids := func(name string, values ...int64) tensor.Tensor {
		made, err := tensor.Of(name, values, int64(len(values)))
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	queries := [][]tensor.Tensor{
		{tensorOf(t, "user", []float32{100, 200}, 1, 2), ids("tags_values", 1, 2, 3),
			ids("tags_lengths", 2, 0, 1)},
		{tensorOf(t, "user", []float32{300, 400}, 1, 2), ids("tags_values", 9), ids("tags_lengths",
			1)},
		{tensorOf(t, "user", []float32{500, 600}, 1, 2), ids("tags_values", 4, 5),
			ids("tags_lengths", 0, 2)},
	}
	wants := [][]float32{{106, 208, 100, 200, 106, 207}, {318, 419}, {500, 600, 518, 620}}
	for i, q := range queries {
		if got := answerOf(t, model, q...); !slices.Equal(got, wants[i]) {
			t.Errorf("query %d alone: got %v, want %v", i, got, wants[i])
		}
	}
	whole, err := runtime.RunJoined(t.Context(), model, queries)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Release()
	got, err := tensor.Values[float32](whole.Outputs[0])
	if err != nil {
		t.Fatal(err)
	}
	if want := slices.Concat(wants...); !slices.Equal(got, want) {
		t.Errorf("as one run: got %v, want %v", got, want)
	}

	// Through lanes: the first query keeps the lane, the others then run as one.
	lanes := runtime.NewLanes(runtime.LanesConfig{})
	var running sync.WaitGroup
	for round := range 8 {
		for i, q := range queries {
			running.Go(func() {
				result, err := lanes.Do(t.Context(), runtime.Query{
					Model: model, Inputs: q, BatchSize: len(wants[i]) / 2, Roles: v.Roles,
					Profile: "m/1",
					Merge:   names.MergeDeadline, LargestBatch: 64, QoSTarget: time.Minute,
				})
				if err != nil {
					t.Error(err)
					return
				}
				defer result.Release()
				if err := v.Roles.Answer(result.Outputs,
					roles.QuerySize{Rows: len(wants[i]) / 2}); err != nil {
					t.Error(err)
				}
				got, err := tensor.Values[float32](result.Outputs[0])
				of := result.Outputs[1]
				if err != nil || !slices.Equal(got, wants[i]) || of.Shape[0] != 1 {
					t.Errorf("round %d, query %d: got %v and of the user %v, %v, want %v", round,
						i, got,
						of.Shape, err, wants[i])
				}
			})
		}
	}
	running.Wait()
}
