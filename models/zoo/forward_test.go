package zoo_test

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/floats"
)

// The models once more, in plain float64 arithmetic, one item at a time,
// written from their description and not from the graphs.

// weights are a model's tensors by name, as the data file holds them.
type weights map[string]matrix

// A matrix is row-major; a vector is a matrix of one column.
type matrix struct {
	columns int
	values  []float64
}

func (m matrix) row(i int64) []float64 {
	return m.values[int(i)*m.columns:][:m.columns]
}

// An item is one row of a query.
type item struct {
	dense []float64
	ids   [][]int64 // by table, one for each lookup
}

// forward computes the model's outputs for one item.
var forward = map[string]func(w weights, x item) [][]float64{
	"ncf":   ncf,
	"rm1":   func(w weights, x item) [][]float64 { return recommendation(w, x, 2) },
	"rm2":   func(w weights, x item) [][]float64 { return recommendation(w, x, 2) },
	"rm3":   func(w weights, x item) [][]float64 { return recommendation(w, x, 3) },
	"din":   din,
	"wnd":   wnd,
	"mtwnd": mtwnd,
	"dien":  dien,
}

func ncf(w weights, x item) [][]float64 {
	mf := floats.MulTo(make([]float64, 64), w.embed("mf_user", x.ids[0]),
		w.embed("mf_item", x.ids[1]))
	mlp := join(w.embed("mlp_user", x.ids[2]), w.embed("mlp_item", x.ids[3]))
	for i := range 4 {
		mlp = relu(w.fc(fmt.Sprintf("mlp_%d", i), mlp))
	}
	return [][]float64{relu(w.fc("top", join(mf, mlp)))}
}

// recommendation is RM1, RM2 and RM3, whose bottom MLP has the given number of layers.
func recommendation(w weights, x item, bottom int) [][]float64 {
	y := x.dense
	for i := range bottom {
		y = relu(w.fc(fmt.Sprintf("bottom_%d", i), y))
	}
	for i, ids := range x.ids {
		y = join(y, w.embed(fmt.Sprintf("table_%d", i), ids))
	}
	y = relu(w.fc("top_0", y))
	y = relu(w.fc("top_1", y))
	return [][]float64{sigmoid(w.fc("top_2", y))}
}

func wnd(w weights, x item) [][]float64 {
	y := x.dense
	for i, ids := range x.ids {
		y = join(y, w.embed(fmt.Sprintf("table_%d", i), ids))
	}
	for i := range 3 {
		y = relu(w.fc(fmt.Sprintf("top_%d", i), y))
	}
	return [][]float64{sigmoid(w.fc("top_3", y))}
}

func mtwnd(w weights, x item) [][]float64 {
	y := x.dense
	for i, ids := range x.ids {
		y = join(y, w.embed(fmt.Sprintf("table_%d", i), ids))
	}
	y = relu(w.fc("shared_0", y))
	y = relu(w.fc("shared_1", y))
	var outputs [][]float64
	for i := range 5 {
		hidden := relu(w.fc(fmt.Sprintf("task_%d_0", i), y))
		outputs = append(outputs, sigmoid(w.fc(fmt.Sprintf("task_%d_1", i), hidden)))
	}
	return outputs
}

func din(w weights, x item) [][]float64 {
	user, behaviour := w.embed("user", x.ids[0]), w.embed("behaviour", x.ids[1])
	ad, context := w.embed("ad", x.ids[2]), w.embed("context", x.ids[3])
	attention := relu(w.fc("attention_0", join(behaviour, ad, sum(behaviour, ad))))
	attention = relu(w.fc("attention_1", attention))
	y := join(user, attention, ad, context)
	y = relu(w.fc("top_0", y))
	y = relu(w.fc("top_1", y))
	return [][]float64{relu(w.fc("top_2", y))}
}

func dien(w weights, x item) [][]float64 {
	profile, ad, context := w.embed("profile", x.ids[0]), w.embed("ad",
		x.ids[41]), w.embed("context", x.ids[42])
	h := make([]float64, 64)
	var states [][]float64
	var scores []float64
	for t := range 40 {
		h = w.gru("gru", w.embed(fmt.Sprintf("behaviour_%d", t), x.ids[1+t]), h, 1)
		states = append(states, h)
		scores = append(scores, floats.Dot(h, product(w["attention.weight"], ad)))
	}
	h = make([]float64, 64)
	for t, a := range softmax(scores) {
		h = w.gru("augru", states[t], h, a)
	}
	y := join(h, profile, ad, context)
	y = relu(w.fc("top_0", y))
	y = relu(w.fc("top_1", y))
	return [][]float64{softmax(w.fc("top_2", y))}
}

// gru is one step of a gated recurrent unit; a scales its update gate.
func (w weights) gru(name string, x, h []float64, a float64) []float64 {
	// Rows 0-63 of the stacked matrices are the update gate's, 64-127 the
	// reset gate's, 128-191 the candidate's.
	input := sum(product(w[name+".input"], x), w[name+".bias"].values)
	gates := sigmoid(sum(input[:128], product(w[name+".gates"], h)))
	candidate := product(w[name+".candidate"], h)
	next := make([]float64, 64)
	for i := range next {
		u := a * gates[i]
		c := math.Tanh(input[128+i] + gates[64+i]*candidate[i])
		next[i] = (1-u)*h[i] + u*c
	}
	return next
}

// embed is the sum of a table's rows.
func (w weights) embed(table string, ids []int64) []float64 {
	y := make([]float64, w[table].columns)
	for _, id := range ids {
		floats.Add(y, w[table].row(id))
	}
	return y
}

// fc is xW^T + b.
func (w weights) fc(name string, x []float64) []float64 {
	return sum(product(w[name+".weight"], x), w[name+".bias"].values)
}

// product is m x.
func product(m matrix, x []float64) []float64 {
	if m.columns != len(x) {
		panic(fmt.Sprintf("a matrix of %d columns times a vector of %d", m.columns, len(x)))
	}
	y := make([]float64, len(m.values)/m.columns)
	for i := range y {
		y[i] = floats.Dot(m.row(int64(i)), x)
	}
	return y
}

func sum(a, b []float64) []float64 {
	return floats.AddTo(make([]float64, len(a)), a, b)
}

func join(parts ...[]float64) []float64 {
	var all []float64
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func each(x []float64, f func(float64) float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = f(v)
	}
	return y
}

func relu(x []float64) []float64 {
	return each(x, func(v float64) float64 { return max(0, v) })
}

func sigmoid(x []float64) []float64 {
	return each(x, func(v float64) float64 { return 1 / (1 + math.Exp(-v)) })
}

func softmax(x []float64) []float64 {
	total := 0.0
	for _, v := range x {
		total += math.Exp(v)
	}
	return each(x, func(v float64) float64 { return math.Exp(v) / total })
}
