package zoo

import (
	"fmt"
	"math/big"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// The rankers score the candidates of one user. Inputs of the user and of the items are separate,
// so that a client can send the former once. All have a row for each candidate, as exporters write
// them. Their sizes are those of no product; they are chosen near the ones that their papers name.
var rankers = []architecture{
	{"ranker-din", 50 * time.Millisecond, big.NewRat(1, 10), buildRankerDIN, "paper"},
	{"ranker-dien", 50 * time.Millisecond, big.NewRat(1, 10), buildRankerDIEN, "paper"},
	{"ranker-transformer", 50 * time.Millisecond, big.NewRat(1, 10), buildRankerTransformer,
		"paper"},
	{"ranker-dlrm", 50 * time.Millisecond, big.NewRat(1, 10), buildRankerDLRM, "paper"},
}

// The inputs of rankers.
const (
	userDenseInput   = "user_dense"   // [N, features]
	userIDsInput     = "user_ids"     // [N, tables]
	userBagsInput    = "user_bags"    // [N, tables, lookups], to be summed
	userHistoryInput = "user_history" // [N, steps] of items
	itemIDsInput     = "item_ids"     // [N, tables]
)

// isUserInput are those that are of the user.
var isUserInput = map[string]bool{
	userDenseInput: true, userIDsInput: true, userBagsInput: true, userHistoryInput: true,
}

// The users' and items' tables of the rankers but DLRM's, and the number of steps in a history.
const (
	userTables, itemTables = 4, 3
	rankerDim              = 32
	historySteps           = 50
)

// addNamedTables adds a table for each column of an input of ids, of the given shape without the
// batch size, and returns what is looked up in each, [N, 1, dim], the sum of the lookups.
func (b *builder) addNamedTables(input, name string, fullRows, dim int64, shape ...int64) []string {
	lookups := int64(1)
	if len(shape) > 1 {
		lookups = shape[1]
	}
	ids := b.addNodes("Split", input, int(shape[0]), []string{b.addInput(input, tensor.Int64,
		shape...)}, axisAttribute(1))
	var rows []string
	for i, own := range ids {
		rows = append(rows, b.addLookup(fmt.Sprintf("%s_%d", name, i), input, own, fullRows, dim,
			lookups))
	}
	return rows
}

// addHistory adds the input of items that the user has seen, and a table of items, and returns what
// is looked up, [N, steps, dim].
func (b *builder) addHistory(fullRows, dim, steps int64) string {
	history := b.addInput(userHistoryInput, tensor.Int64, steps)
	return b.addLookup("history", userHistoryInput, history, fullRows, dim, 1)
}

// addProduct multiplies x [..., in] by a weight [in, out] of He's rule and adds a bias.
func (b *builder) addProduct(name, x string, in, out int64) string {
	w := b.addWeight(name+".weight", 0, uniformSpread(2/float64(in)), in, out)
	bias := b.addWeight(name+".bias", 0, smallBias, out)
	return b.addNode("Add", name, []string{b.addNode("MatMul", name, []string{x, w}), bias})
}

// buildRankerDIN is the deep interest network (Zhou et al., KDD 2018): each step of the history is
// weighted by an attention unit, an MLP on the step, the item, their difference and their product.
func buildRankerDIN(b *builder) {
	const dim = rankerDim
	user := b.addNamedTables(userIDsInput, "user", 500_000, dim, userTables)
	history := b.addHistory(1_000_000, dim, historySteps)
	items := b.addNamedTables(itemIDsInput, "item", 1_000_000, dim, itemTables)
	ad := b.addNode("Tile", "ad", []string{items[0], b.addConstant("steps", 1, historySteps, 1)})
	both := []string{
		history, ad, b.addNode("Sub", "attention", []string{history, ad}),
		b.addNode("Mul", "attention", []string{history, ad}),
	}
	x := b.addNode("Concat", "attention", both, axisAttribute(2))
	x = b.addNode("Sigmoid", "attention", []string{b.addProduct("attention_0", x, 4*dim, 36)})
	x = b.addProduct("attention_1", x, 36, 1)
	x = b.addNode("Softmax", "attention", []string{b.addReshape("attention", x, 0, 1,
		historySteps)}, axisAttribute(2))
	interest := b.addNode("MatMul", "interest", []string{x, history}) // [N, 1, dim]
	features := append(append(user, interest), items...)
	width := int64(dim * len(features))
	b.addMLP("top", b.addConcat("top", width, features...), "Sigmoid", width, 200, 80, 1)
	b.addOutput("score", 1)
}

// buildRankerDIEN is the deep interest evolution network (Zhou et al., AAAI 2019): a GRU over the
// history, attention of its states to the item, and a GRU whose update gate the attention scales.
func buildRankerDIEN(b *builder) {
	const dim, state = rankerDim, 64
	user := b.addNamedTables(userIDsInput, "user", 500_000, dim, userTables)
	history := b.addHistory(1_000_000, dim, historySteps)
	items := b.addNamedTables(itemIDsInput, "item", 1_000_000, dim, itemTables)
	gru := b.newGRU("gru", dim, 1, state, 1)
	states := make([]string, historySteps)
	h := ""
	for t, x := range b.addNodes("Split", "history", historySteps, []string{history},
		axisAttribute(1)) {
		h = gru.step(b.addReshape("history", x, 0, dim), h, "")
		states[t] = h
	}
	augru := b.newGRU("augru", state, 1./4, state, 1./10)
	attention := b.addAttention(states, b.addReshape("ad", items[0], 0, dim), state, dim)
	h = ""
	for t, x := range states {
		h = augru.step(x, h, attention[t])
	}
	features := append(append(user, b.addRowReshape("augru", h, state)), items...)
	width := int64(dim*(len(features)-1) + state)
	b.addMLP("top", b.addConcat("top", width, features...), "Sigmoid", width, 200, 80, 1)
	b.addOutput("score", 1)
}

// buildRankerTransformer encodes the history by self-attention, each step to those before it (Kang
// and McAuley, SASRec, ICDM 2018), and scores items by an MLP on its last state beside the
// features.
func buildRankerTransformer(b *builder) {
	const dim, blocks = 64, 2
	user := b.addNamedTables(userIDsInput, "user", 500_000, rankerDim, userTables)
	x := b.addHistory(1_000_000, dim, historySteps)
	x = b.addNode("Add", "positions", []string{x, b.addWeight("positions", 0, smallBias,
		historySteps, dim)})
	norm := func(name, x string) string {
		return b.addNode("LayerNormalization", name, []string{
			x, b.addWeight(name+".scale", 1, smallBias, dim),
			b.addWeight(name+".bias", 0, smallBias, dim),
		}, axisAttribute(-1))
	}
	// later is a large number where the row's step is before the column's
	ahead := b.addNode("Trilu", "mask", []string{
		b.addWeight("mask", -1e4, 0, historySteps, historySteps), b.addScalar("one", 1),
	}, onnx.Attribute{Name: "upper", Value: int64(1)})
	for i := range blocks {
		name := fmt.Sprintf("block_%d", i)
		y := norm(name+"_norm_0", x)
		q := b.addProduct(name+"_query", y, dim, dim)
		k := b.addProduct(name+"_key", y, dim, dim)
		v := b.addProduct(name+"_value", y, dim, dim)
		scores := b.addNode("MatMul", name, []string{q, b.addNode("Transpose", name, []string{k},
			onnx.Attribute{Name: "perm", Value: []int64{0, 2, 1}})})
		scores = b.addNode("Mul", name, []string{scores, b.addWeight(name+".scale", 1./8, 0, 1)})
		scores = b.addNode("Add", name, []string{scores, ahead})
		scores = b.addNode("Softmax", name, []string{scores}, axisAttribute(-1))
		y = b.addProduct(name+"_out", b.addNode("MatMul", name, []string{scores, v}), dim, dim)
		x = b.addNode("Add", name, []string{x, y})
		y = b.addProduct(name+"_mlp_0", norm(name+"_norm_1", x), dim, 4*dim)
		y = b.addNode("Relu", name, []string{y})
		x = b.addNode("Add", name, []string{x, b.addProduct(name+"_mlp_1", y, 4*dim, dim)})
	}
	last := b.addNode("Slice", "last", []string{ // [N, 1, dim]
		norm("norm", x), b.addConstant("last", historySteps-1),
		b.addConstant("end", historySteps), b.addConstant("axes_1", 1),
	})
	items := b.addNamedTables(itemIDsInput, "item", 1_000_000, rankerDim, itemTables)
	features := append(append(user, last), items...)
	width := int64(rankerDim*(len(features)-1) + dim)
	b.addMLP("top", b.addConcat("top", width, features...), "Sigmoid", width, 256, 64, 1)
	b.addOutput("score", 1)
}

// buildRankerDLRM is a DLRM (Naumov et al., 2019) with 13 dense features and 26 tables, as many as
// Criteo's data has. The dense ones and 10 tables are the user's, 2 of these of 50 lookups; 16
// tables are the item's.
func buildRankerDLRM(b *builder) {
	const dim = 64
	dense := b.addInput(userDenseInput, tensor.FP32, 13)
	features := []string{b.addRowReshape("bottom", b.addMLP("bottom", dense, "Relu", 13, 512, 256,
		dim), dim)}
	features = append(features, b.addNamedTables(userBagsInput, "bag", 500_000, dim, 2,
		historySteps)...)
	features = append(features, b.addNamedTables(userIDsInput, "user", 200_000, dim, 8)...)
	features = append(features, b.addNamedTables(itemIDsInput, "item", 200_000, dim, 16)...)
	width := int64(dim * len(features))
	b.addMLP("top", b.addConcat("top", width, features...), "Sigmoid", width, 512, 256, 1)
	b.addOutput("score", 1)
}
