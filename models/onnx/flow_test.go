package onnx

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
)

// flowModel is a model of inputs "x" [rows, 4], "s" [rows, 6, 4], "ids" [rows, 3] and, of users,
// "u" [users, 4] and "h" [users, 6, 4], whose nodes make "y".
func flowModel(opset int64, made ...Node) *Model {
	floats := func(name string, shape ...int64) ValueDescription {
		return ValueDescription{Name: name, DataType: tensor.FP32, Shape: append([]int64{Dynamic},
			shape...)}
	}
	m := &Model{
		Name: "flow", Opset: opset, Nodes: made,
		Inputs: []ValueDescription{
			floats("x", 4), floats("s", 6, 4), floats("u", 4), floats("h", 6, 4),
			{Name: "ids", DataType: tensor.Int64, Shape: []int64{Dynamic, 3}},
		},
		Outputs: []ValueDescription{{Name: "y", DataType: tensor.FP32}},
	}
	weight := func(name string, shape ...int64) {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		m.Initializers = append(m.Initializers, Initializer{
			Name: name, DataType: tensor.FP32, Shape: shape, Data: make([]byte, 4*n),
		})
	}
	weight("table", 10, 4)
	weight("w", 4, 4)
	weight("v", 4)
	weight("w8", 8, 4)
	weight("gru_w", 1, 15, 4)
	weight("gru_r", 1, 15, 5)
	for name, list := range map[string][]int64{
		"zero": {0}, "one": {1}, "two": {2}, "last": {-1}, "all": {9223372036854775807},
		"fold": {-1, 4}, "unfold": {-1, 6, 4}, "flat": {0, 24}, "half": {-1, 8}, "pairs": {-1, 2},
	} {
		m.Initializers = append(m.Initializers, Initializer{Name: name, DataType: tensor.Int64,
			Shape: []int64{int64(len(list))}, Data: ints(list...)})
	}
	for name, i := range map[string]int64{"first": 0, "second": 1} {
		m.Initializers = append(m.Initializers, Initializer{Name: name, DataType: tensor.Int64,
			Shape: []int64{}, Data: ints(i)})
	}
	return m
}

// flowOf returns the flow of a model in which u and h are of users.
func flowOf(t *testing.T, m *Model) *Flow {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := os.WriteFile(path, m.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := ReadSignature(path)
	if err != nil {
		t.Fatal(err)
	}
	return s.Flow(map[string]roles.Role{"u": roles.User, "h": roles.User})
}

// TestFlow: for each graph, the dimensions of "y", or a part of why its rows are not independent.
func TestFlow(t *testing.T) {
	for _, c := range []struct{ graph, want string }{
		{"y=Relu(x)", "[rows 4]"},
		{"y=Relu(u)", "[users 4]"},
		{"y=Add(x, u)", "[rows 4]"},
		{"y=Add(x, v)", "[rows 4]"},
		{"y=Add(x, w)", "rows meet a dimension that is none"},
		{"y=MatMul(x, w)", "[rows 4]"},
		{"y=Gemm(x, w, v) transB=1", "[rows 4]"},
		{"y=Gather(table, ids)", "[rows 3 4]"},
		{"y=Concat(x, u) axis=1", "[rows 8]"},
		{"y=Concat(x, x) axis=0", "it joins rows behind rows"},
		{"y=ReduceSum(s, one) keepdims=0", "[rows 4]"},
		{"y=ReduceMean(x, zero) keepdims=1", "it works over rows"},
		{"y=ReduceMax(x)", "it works over rows"},
		{"y=Softmax(s) axis=1", "[rows 6 4]"},
		{"y=Softmax(x) axis=0", "it works over rows"},
		{"a=Transpose(s) perm=1,0,2; y=GRU(a, gru_w, gru_r) hidden_size=5", "[6 1 rows 5]"},
		{"y=GRU(s, gru_w, gru_r) hidden_size=5", "it works over rows"},
		{"y=GRU(s, gru_w, gru_r) hidden_size=5 layout=1", "[rows 6 1 5]"},
		{"y=Reshape(s, flat)", "[rows 24]"},
		{"a=Reshape(s, fold); b=MatMul(a, w); y=Reshape(b, unfold)", "[rows 6 4]"},
		{"y=Reshape(s, fold)", "[6 x rows 4]"},
		{"y=Reshape(x, half)", "it folds rows"},
		{"y=Reshape(x, pairs)", "[2 x rows 2]"},
		{"a=Transpose(x); y=Reshape(a, fold)", "it folds rows"},
		{"a=Transpose(x); y=MatMul(x, a)", "rows are in two dimensions"},
		{"a=Transpose(x); y=MatMul(a, x)", "it sums over rows"},
		{"a=Transpose(h) perm=0,2,1; b=Unsqueeze(x, one); y=MatMul(b, a)", "[rows 1 6]"},
		{"n=Shape(x); a=Gather(n, first); b=Cast(a) to=1; y=Div(x, b)",
			"the number of rows is used as a number"},
		{"n=Shape(x); a=Gather(n, first); b=Cast(a) to=1; c=ReduceSum(v, zero) keepdims=0; " +
			"d=Div(c, b); y=Add(x, d)",
			"the number of rows is used as a number"},
		{"n=Shape(x); a=Gather(n, first); p=Range(first, a, second); y=Cast(p) to=1",
			"the number of rows is used as a number"},
		{"n=Shape(s); a=Slice(n, zero, one); b=Concat(a, last) axis=0; y=Reshape(s, b)",
			"[rows 24]"},
		{"n=Shape(x); y=Expand(v, n)", "[rows 4]"},
		{"n=Shape(u); y=Reshape(x, n)", "[rows 4]"},
		{"n=Shape(x); a=Gather(n, second); b=Cast(a) to=1; y=Div(x, b)", "[rows 4]"},
		{"y=DynamicQuantizeLinear(x)", "the operator is not known"},
		{"y=BatchNormalization(x, v, v, v, v)", "[rows 4]"},
		{"y=BatchNormalization(x, v, v, v, v) training_mode=1", "as in training"},
		{"y=Dropout(x)", "[rows 4]"},
		{"y=RandomNormalLike(x)", "the operator is not known"},
		{"y=TopK(x, two) axis=0", "it works over rows"},
		{"y=TopK(x, two) axis=1", "[rows 2]"},
		{"y=CumSum(x, first)", "it works over rows"},
		{"y=CumSum(x, second)", "[rows 4]"},
		{"y=Unique(x)", "the operator is not known"},
		{"y=NonZero(x)", "the operator is not known"},
		{"a=Cast(v) to=9; y=Compress(x, a) axis=1", "the operator is not known"},
		{"a=ArgMax(x) axis=0; y=Cast(a) to=1", "it works over rows"},
		{"a=ArgMax(x) axis=1; y=Cast(a) to=1", "[rows 1]"},
		{"a=Gather(ids, first) axis=1; y=Gather(x, a)", "it works over rows"},
		{"a=Gather(ids, first) axis=1; y=Gather(s, a) axis=1", "indices of rows come from rows"},
		{"y=Gather(x, first)", "it works over rows"},
		{"y=Gather(s, first) axis=1", "[rows 4]"},
		{"y=Slice(x, zero, two, one)", "[rows 2]"},
		{"y=Slice(x, zero, two, zero)", "it works over rows"},
		{"y=Slice(x, zero, all, zero)", "[rows 4]"},
		{"y=Loop(first, , x)", "the operator is not known"},
		{"y=ReduceSum(u, zero) keepdims=1", "it works over rows"},
		{"y=Einsum(x, w)", "its equation is not known"},
	} {
		t.Run(c.graph, func(t *testing.T) {
			f := flowOf(t, flowModel(17, nodes(t, c.graph)...))
			got := f.values["y"].mixes
			if got == "" {
				dims, _ := f.Dimensions("y")
				got = fmt.Sprint(dims)
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if why := f.Independence().Reason; (why == "") != (strings.HasPrefix(c.want, "[rows") ||
				c.want == "[users 4]") {
				t.Errorf("dimensions %q, but rows mix: %q", got, why)
			}
		})
	}
	f := flowOf(t, flowModel(11, nodes(t, "y=Softmax(s)")...))
	if why := f.Independence().Reason; why != "" {
		t.Errorf("Softmax of set 11 over axes 1 and 2: %s", why)
	}
	f = flowOf(t, flowModel(11, nodes(t, "a=Transpose(s) perm=1,2,0; y=Softmax(a)")...))
	if why := f.Independence().Reason; !strings.Contains(why, "it works over rows") {
		t.Errorf("Softmax of set 11 over axes 1 and 2, which are rows: %q", why)
	}
}
