package zoo

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// An architecture is a model of DeepRecSys (Gupta et al., ISCA 2020). Every layer ends
// in ReLU unless said otherwise.
type architecture struct {
	name         string
	qosTarget    time.Duration
	defaultScale *big.Rat
	build        func(*builder)
	// source is "paper", or "reference" where DeepRecSys's code is another model than the paper
	// that introduced it, and the zoo follows the code.
	source string
}

var architectures = []architecture{
	{"ncf", 5 * time.Millisecond, big.NewRat(1, 1), buildNCF, "paper"},
	{"rm1", 100 * time.Millisecond, big.NewRat(1, 16), buildRM1, "paper"},
	{"rm2", 350 * time.Millisecond, big.NewRat(1, 16), buildRM2, "paper"},
	{"rm3", 100 * time.Millisecond, big.NewRat(1, 10), buildRM3, "paper"},
	{"wnd", 25 * time.Millisecond, big.NewRat(1, 16), buildWND, "paper"},
	{"mtwnd", 25 * time.Millisecond, big.NewRat(1, 16), buildMTWND, "paper"},
	{"din", 100 * time.Millisecond, big.NewRat(1, 10), buildDIN, "reference"},
	{"dien", 35 * time.Millisecond, big.NewRat(1, 16), buildDIEN, "paper"},
}

// buildNCF is neural collaborative filtering: the product of two embeddings beside an
// MLP over two others.
func buildNCF(b *builder) {
	ids := b.addIDs(4, 1)
	mfUser := b.addTable("mf_user", ids, 140_000, 64, 1)
	mfItem := b.addTable("mf_item", ids, 140_000, 64, 1)
	mlpUser := b.addTable("mlp_user", ids, 28_000, 64, 1)
	mlpItem := b.addTable("mlp_item", ids, 28_000, 64, 1)
	mf := b.addNode("Mul", "mf", []string{mfUser, mfItem})
	mlp := b.addMLP("mlp", b.addConcat("mlp", 128, mlpUser, mlpItem), "Relu", 128, 256, 256, 128,
		64)
	// The bias is above 0, so that most outputs are above 0 too.
	w := b.addWeight("top.weight", 0, uniformSpread(2./128), 64, 128)
	bias := b.addWeight("top.bias", 1, smallBias, 64)
	b.addNode("Relu", "top", []string{
		b.addGemm("top", b.addConcat("top", 128, mf, b.addRowReshape("mlp", mlp, 64)), w, bias),
	})
	b.addOutput("scores", 64)
}

// buildRM1 is a small recommendation model that spends most of its time on lookups in few embedding
// tables.
func buildRM1(b *builder) {
	b.buildDLRM(8, 80, 4_000_000, []int64{128, 64, 32}, 256, 64)
}

// buildRM2 is a recommendation model that spends most of its time on lookups in embedding tables.
func buildRM2(b *builder) {
	b.buildDLRM(32, 120, 500_000, []int64{256, 128, 64}, 128, 64)
}

// buildRM3 is a recommendation model that spends most of its time in its MLPs.
func buildRM3(b *builder) {
	b.buildDLRM(10, 20, 2_000_000, []int64{2560, 1024, 256, 32}, 512, 256)
}

// buildDLRM builds a DLRM: an MLP over dense features, sizes bottom, beside tables whose rows
// are as wide as its result and are summed over the lookups, and an MLP over all of them, with
// hidden layers of the sizes top.
func (b *builder) buildDLRM(tables int, lookups, rows int64, bottom []int64, top ...int64) {
	dim := bottom[len(bottom)-1]
	dense := b.addInput(denseInput, tensor.FP32, bottom[0])
	ids := b.addIDs(tables, lookups)
	features := []string{b.addRowReshape("bottom", b.addMLP("bottom", dense, "Relu", bottom...),
		dim)}
	for i := range tables {
		features = append(features, b.addTable(fmt.Sprintf("table_%d", i), ids, rows, dim, lookups))
	}
	width := dim * int64(tables+1)
	sizes := slices.Concat([]int64{width}, top, []int64{1})
	b.addMLP("top", b.addConcat("top", width, features...), "Sigmoid", sizes...)
	b.addOutput("score", 1)
}

// buildWND is wide and deep.
func buildWND(b *builder) {
	dense := b.addInput(denseInput, tensor.FP32, 512)
	ids := b.addIDs(27, 1)
	features := []string{b.addRowReshape(denseInput, dense, 512)}
	for i := range 27 {
		features = append(features, b.addTable(fmt.Sprintf("table_%d", i), ids, 1_000_000, 32, 1))
	}
	b.addMLP("top", b.addConcat("top", 1376, features...), "Sigmoid", 1376, 1024, 512, 256, 1)
	b.addOutput("score", 1)
}

// buildMTWND is multi-task wide and deep: several heads on shared layers.
func buildMTWND(b *builder) {
	const tasks = 5
	dense := b.addInput(denseInput, tensor.FP32, 512)
	ids := b.addIDs(43, 1)
	features := []string{b.addRowReshape(denseInput, dense, 512)}
	for i := range 43 {
		rows := int64(500_000)
		if i >= 41 {
			rows = 5_000_000
		}
		features = append(features, b.addTable(fmt.Sprintf("table_%d", i), ids, rows, 32, 1))
	}
	shared := b.addMLP("shared", b.addConcat("shared", 1888, features...), "Relu", 1888, 1024, 512)
	for i := range tasks {
		name := fmt.Sprintf("task_%d", i)
		b.addMLP(name, shared, "Sigmoid", 512, 256, 128)
		b.addOutput(name, 128)
	}
}

// buildDIN is the deep interest network (Zhou et al., KDD 2018) as DeepRecSys's code has it: three
// behaviours of a user are summed before the attention unit, whose result is a vector, not a score.
func buildDIN(b *builder) {
	const dim, lookups = 32, 3
	ids := b.addIDs(4, lookups)
	user := b.addTable("user", ids, 1_000_000, dim, lookups)
	behaviour := b.addTable("behaviour", ids, 100_000, dim, lookups)
	ad := b.addTable("ad", ids, 10_000_000, dim, lookups)
	context := b.addTable("context", ids, 10_000_000, dim, lookups)
	both := b.addNode("Add", "attention", []string{behaviour, ad})
	x := b.addConcat("attention", 3*dim, behaviour, ad, both)
	attention := b.addMLP("attention", x, "Relu", 3*dim, 1, dim)
	x = b.addConcat("top", 4*dim, user, b.addRowReshape("attention", attention, dim), ad, context)
	x = b.addMLP("top", x, "Relu", 4*dim, 200, 80)
	// The bias is above 0, so that most outputs are above 0 too.
	w := b.addWeight("top_2.weight", 0, uniformSpread(2./80), 2, 80)
	bias := b.addWeight("top_2.bias", 1, smallBias, 2)
	b.addNode("Relu", "top_2", []string{b.addGemm("top_2", x, w, bias)})
	b.addOutput("scores", 2)
}

// behaviours is the length of DIEN's sequence.
const behaviours = 40

// buildDIEN is the deep interest evolution network (Zhou et al., AAAI 2019): a GRU over the
// behaviours, attention of its states to the ad, and a GRU whose update gate the
// attention scales.
func buildDIEN(b *builder) {
	const dim, state = 32, 64
	ids := b.addIDs(behaviours+3, 1)
	profile := b.addTable("profile", ids, 500_000, dim, 1)
	behaviour := make([]string, behaviours)
	for t := range behaviour {
		name := fmt.Sprintf("behaviour_%d", t)
		behaviour[t] = b.addReshape(name, b.addTable(name, ids, 500_000, dim, 1), 0, dim)
	}
	ad := b.addTable("ad", ids, 5_000_000, dim, 1)
	context := b.addTable("context", ids, 5_000_000, dim, 1)

	gru := b.newGRU("gru", dim, 1, state, 1)
	states := make([]string, behaviours)
	h := ""
	for t, x := range behaviour {
		h = gru.step(x, h, "")
		states[t] = h
	}
	// The GRU's states have a variance of about a quarter. Those of the AUGRU have less than a
	// tenth, because attention lets them change at few steps only. With weights for a variance of 1
	// the states would hardly affect the outputs.
	augru := b.newGRU("augru", state, 1./4, state, 1./10)
	attention := b.addAttention(states, b.addReshape("ad", ad, 0, dim), state, dim)
	h = ""
	for t, x := range states {
		h = augru.step(x, h, attention[t])
	}

	x := b.addConcat("top", state+3*dim, b.addRowReshape("augru", h, state), profile, ad, context)
	x = b.addMLP("top", x, "Relu", state+3*dim, 200, 80)
	b.addFullyConnected("top_2", x, 80, 2, "Softmax", axisAttribute(1))
	b.addOutput("probabilities", 2)
}

// attentionVariance is the variance of the scores before the softmax. With 9, a few behaviours of a
// query get most of the attention, different ones for each query, so that each behaviour matters to
// some queries.
const attentionVariance = 9

// addAttention is, for each state h_t [N, state], the softmax over t of
// h_t W e with W [state, dim] and e [N, dim]; each is [N, 1]. The states' variance
// is about a quarter.
func (b *builder) addAttention(states []string, e string, state, dim int64) []string {
	const name = "attention"
	w := b.addWeight(name+".weight", 0, uniformSpread(attentionVariance/(float64(state*dim)/4)),
		state,
		dim)
	steps := int64(len(states))
	q := b.addNode("Gemm", name, []string{e, w}, onnx.Attribute{Name: "transB", Value: int64(1)})
	h := b.addNode("Concat", name, states, axisAttribute(1))
	scores := b.addNode("MatMul", name, []string{
		b.addReshape(name, h, 0, steps, state), b.addReshape(name, q, 0, state, 1),
	})
	a := b.addNode("Softmax", name, []string{b.addReshape(name, scores, 0, steps)},
		axisAttribute(1))
	return b.addNodes("Split", name, len(states), []string{a}, axisAttribute(1))
}

// A gru is a gated recurrent unit, unrolled:
//
//	u = sigmoid(x Wu^T + h Uu^T + bu)    update gate
//	r = sigmoid(x Wr^T + h Ur^T + br)    reset gate
//	c = tanh(x Wc^T + r * (h Uc^T) + bc) candidate
//	h' = (1 - a u) * h + a u * c         next state
//
// where a is 1, or the attention (Zhou et al., Eq. 2-5 and AUGRU). The
// matrices of the gates are stacked: W, U and b hold u, r, c in this order.
type gru struct {
	b             *builder
	name          string
	state         int64
	w, bias       string
	uGates, uCand string
}

// newGRU adds the weights of a GRU, by He's rule for inputs and states of the
// given variances.
func (b *builder) newGRU(name string, in int64, inVariance float64, state int64,
	stateVariance float64) *gru {
	return &gru{
		b:     b,
		name:  name,
		state: state,
		w: b.addWeight(name+".input", 0, uniformSpread(2/(float64(in)*inVariance)), 3*state,
			in),
		bias: b.addWeight(name+".bias", 0, smallBias, 3*state),
		uGates: b.addWeight(name+".gates", 0, uniformSpread(2/(float64(state)*stateVariance)),
			2*state,
			state),
		uCand: b.addWeight(name+".candidate", 0, uniformSpread(2/(float64(state)*stateVariance)),
			state,
			state),
	}
}

// step returns the state after x, given the state before, h, and the
// attention. An empty h is a state of zeros, an empty attention is 1.
func (g *gru) step(x, h, attention string) string {
	b := g.b
	split := func(value string, sizes ...int64) []string {
		name := strings.ReplaceAll(fmt.Sprint("split", sizes), " ", "_")
		return b.addNodes("Split", g.name, len(sizes), []string{value, b.addConstant(name,
			sizes...)},
			axisAttribute(1))
	}
	op := func(op string, values ...string) string { return b.addNode(op, g.name, values) }

	projected := b.addGemm(g.name, x, g.w, g.bias)
	if h == "" {
		parts := split(projected, g.state, g.state, g.state) // the reset gate has nothing to reset
		u := op("Sigmoid", parts[0])
		if attention != "" {
			u = op("Mul", attention, u)
		}
		return op("Mul", u, op("Tanh", parts[2]))
	}
	parts := split(projected, 2*g.state, g.state)
	gates := split(op("Sigmoid", b.addGemm(g.name, h, g.uGates, parts[0])), g.state, g.state)
	u, r := gates[0], gates[1]
	if attention != "" {
		u = op("Mul", attention, u)
	}
	recurrent := b.addNode("Gemm", g.name, []string{h, g.uCand}, onnx.Attribute{
		Name: "transB", Value: int64(1),
	})
	c := op("Tanh", op("Add", parts[1], op("Mul", r, recurrent)))
	return op("Add", h, op("Mul", u, op("Sub", c, h)))
}
