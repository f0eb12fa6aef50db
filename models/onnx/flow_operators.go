package onnx

import (
	"slices"
	"strings"
)

// flowOperators say of each operator that is known what its outputs' dimensions are, or why it may
// mix rows or cannot be followed. Each holds for all versions of the operator that ONNX Runtime
// runs.
var flowOperators = map[string]func(f *flowAnalysis, s *step) ([]flowValue, string){}

func init() { // not in the declaration, for the functions reach the map
	add := func(follow func(f *flowAnalysis, s *step) ([]flowValue, string), names string) {
		for name := range strings.FieldsSeq(names) {
			flowOperators[name] = follow
		}
	}
	add(followElements, `Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot
		BitwiseOr BitwiseXor Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater
		GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean
		Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
		Softplus Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu Where Xor Cast
		com.microsoft.Gelu com.microsoft.FastGelu com.microsoft.QuickGelu com.microsoft.BiasGelu
		ai.onnx.ml.Binarizer ai.onnx.ml.CategoryMapper ai.onnx.ml.LabelEncoder`)
	add(followFirst, `CastLike QuantizeLinear DequantizeLinear
		ai.onnx.ml.Imputer ai.onnx.ml.Scaler`)
	add(followConstant, "Constant")
	add(followShape, "Shape")
	add(followSize, "Size")
	add(followConstantOfShape, "ConstantOfShape")
	add(followReshape, "Reshape")
	add(followFlatten, "Flatten")
	add(followSqueeze, "Squeeze")
	add(followUnsqueeze, "Unsqueeze")
	add(followTranspose, "Transpose")
	add(followExpand, "Expand")
	add(followTile, "Tile")
	add(followConcatSizes, "Concat")
	add(followSplitSizes, "Split")
	add(followSlice, "Slice")
	add(followPad, "Pad")
	add(followGather, "Gather")
	add(followGatherElements, "GatherElements")
	add(followMatMul, "MatMul MatMulInteger")
	add(followGemm, "Gemm")
	add(followEinsum, "Einsum")
	add(followReduce, `ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
		ReduceProd ReduceSum ReduceSumSquare`)
	add(followArgument, "ArgMax ArgMin")
	add(followTopK, "TopK")
	add(followAlong, "CumSum LpNormalization")
	add(followSoftmax, "Softmax LogSoftmax Hardmax")
	add(followFrom, "LayerNormalization RMSNormalization")
	add(followBatchNormalization, "BatchNormalization")
	add(followFirstRows, "InstanceNormalization GroupNormalization LRN")
	add(followDropout, "Dropout")
	add(followImage, `Conv MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool`)
	add(followRecurrent, "GRU LSTM RNN")
	add(followOneHot, "OneHot")
	add(followRange, "Range")
	add(followTriangle, "Trilu")
	add(followRowsOf, `ai.onnx.ml.LinearClassifier ai.onnx.ml.LinearRegressor ai.onnx.ml.SVMClassifier
		ai.onnx.ml.SVMRegressor ai.onnx.ml.TreeEnsemble ai.onnx.ml.TreeEnsembleClassifier
		ai.onnx.ml.TreeEnsembleRegressor ai.onnx.ml.Normalizer ai.onnx.ml.FeatureVectorizer
		ai.onnx.ml.ZipMap`)
	add(followFeatures, "ai.onnx.ml.ArrayFeatureExtractor")
	add(followCategories, "ai.onnx.ml.OneHotEncoder")
}

// followElements is of operators that make each element of those at the same place.
func followElements(f *flowAnalysis, s *step) ([]flowValue, string) {
	var dims []size
	for i := range s.inputs {
		v, ok := f.input(s, i)
		if !ok {
			continue
		}
		if dims == nil {
			if dims = v.dims; dims == nil {
				return nil, noDims
			}
			continue
		}
		var why string
		if dims, why = f.broadcastSizes(dims, v.dims); why != "" {
			return nil, why
		}
	}
	out, why := one(dims)
	if why == "" {
		out[0].ints = f.computeInts(s)
	}
	return out, why
}

// computeInts returns the elements of what a step makes of integers; nil if they are not known.
func (f *flowAnalysis) computeInts(s *step) []size {
	var lists [][]size
	n := 1
	for i := range s.inputs {
		v, ok := f.input(s, i)
		if !ok || v.ints == nil || len(v.dims) > 1 {
			return nil
		}
		lists = append(lists, v.ints)
		n = max(n, len(v.ints))
	}
	out := []size{}
	for i := range n {
		var at []size
		for _, list := range lists {
			switch {
			case len(list) == n:
				at = append(at, list[i])
			case len(list) == 1:
				at = append(at, list[0])
			default:
				return nil
			}
		}
		v, ok := computeInt(s.op, at)
		if !ok {
			return nil
		}
		out = append(out, v)
	}
	return out
}

// computeInt returns what an operator makes of integers; false if that is not known.
func computeInt(op string, x []size) (size, bool) {
	fixed := !slices.ContainsFunc(x, func(s size) bool { return !s.isFixed() })
	switch {
	case (op == "Identity" || op == "Cast") && len(x) == 1:
		return x[0], true
	case op == "Mul" && len(x) == 2:
		return x[0].times(x[1]), true
	case op == "Div" && len(x) == 2:
		return x[0].dividedBy(x[1])
	case op == "Add" && len(x) == 2 && fixed:
		return fixedSize(x[0].factor + x[1].factor), true
	case op == "Sub" && len(x) == 2 && fixed:
		return fixedSize(x[0].factor - x[1].factor), true
	case op == "Equal" && len(x) == 2:
		switch {
		case fixed:
			return fixedSize(map[bool]int64{true: 1}[x[0].factor == x[1].factor]), true
		// a number of elements is never negative
		case x[0].isFixed() && x[0].factor < 0 && x[1].factor > 0,
			x[1].isFixed() && x[1].factor < 0 && x[0].factor > 0:
			return fixedSize(0), true
		}
	case op == "Where" && len(x) == 3 && x[0].isFixed():
		if x[0].factor != 0 {
			return x[1], true
		}
		return x[2], true
	}
	return size{}, false
}

// followFirst is of operators whose output has the dimensions of the first input, where the others
// are the same for all rows.
func followFirst(f *flowAnalysis, s *step) ([]flowValue, string) {
	for i := 1; i < len(s.inputs) && s.op != "CastLike"; i++ {
		if v, _ := f.input(s, i); v.from&perRow != 0 {
			return nil, "its parameters come from rows"
		}
	}
	return one(f.inputDims(s, 0))
}

func followConstant(f *flowAnalysis, s *step) ([]flowValue, string) {
	c := s.value
	if list, ok := s.ints["value_ints"]; ok {
		c = constant{shape: []int64{int64(len(list))}, ints: list}
	} else if list, ok := s.ints["value_int"]; ok {
		c = constant{shape: []int64{}, ints: list}
	}
	return []flowValue{c.toFlow()}, ""
}

func followShape(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	if dims == nil {
		return nil, noDims
	}
	start, _ := clipAxis(s.intAttribute("start", 0), len(dims))
	end, _ := clipAxis(s.intAttribute("end", int64(len(dims))), len(dims))
	ints := slices.Clone(dims[start:max(start, end)])
	if ints == nil {
		ints = []size{}
	}
	return []flowValue{{dims: []size{fixedSize(int64(len(ints)))}, ints: ints}}, ""
}

// clipAxis returns an axis within [0, rank].
func clipAxis(axis int64, rank int) (int, bool) {
	if axis < 0 {
		axis += int64(rank)
	}
	return int(min(max(axis, 0), int64(rank))), true
}

func followSize(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	if dims == nil {
		return nil, noDims
	}
	return []flowValue{{dims: []size{}, ints: []size{productOf(dims)}}}, ""
}

func followConstantOfShape(f *flowAnalysis, s *step) ([]flowValue, string) {
	v, _ := f.input(s, 0)
	if v.ints == nil {
		return nil, noDims
	}
	out := flowValue{dims: slices.Clone(v.ints)}
	if n := productOf(v.ints); n.isFixed() && n.factor <= maxInts && len(v.ints) == 1 {
		fill := int64(0)
		if s.value.shape != nil {
			if len(s.value.ints) != 1 {
				return []flowValue{out}, ""
			}
			fill = s.value.ints[0]
		}
		out.ints = []size{}
		for range n.factor {
			out.ints = append(out.ints, fixedSize(fill))
		}
	}
	return []flowValue{out}, ""
}

func followReshape(f *flowAnalysis, s *step) ([]flowValue, string) {
	v, _ := f.input(s, 0)
	if v.dims == nil {
		return nil, noDims
	}
	to, _ := f.input(s, 1)
	list := to.ints
	if old, ok := s.ints["shape"]; ok {
		list = constant{ints: old}.toFlow().ints
	}
	if list == nil {
		return nil, noShape
	}
	dims, why := f.reshapeSizes(v.dims, list, s.intAttribute("allowzero", 0) != 0)
	if why != "" {
		return nil, why
	}
	return []flowValue{{dims: dims, ints: keptInts(v, dims)}}, ""
}

// keptInts returns the integers of a value that was given other dimensions.
func keptInts(v flowValue, dims []size) []size {
	if len(dims) > 1 {
		return nil
	}
	return v.ints
}

func followFlatten(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	if dims == nil {
		return nil, noDims
	}
	axis, _ := clipAxis(s.intAttribute("axis", 1), len(dims))
	out := []size{productOf(dims[:axis]), productOf(dims[axis:])}
	if from, at := countingDim(dims), countingDim(out); from >= 0 &&
		!(at == 0 && from == 0 || at == 1 && from == axis) {
		return nil, folds
	}
	return one(out)
}

// markAxes marks the axes among the dimensions. None may count rows or users; why says what is
// wrong.
func markAxes(dims []size, axes []int64) (marked []bool, why string) {
	marked = make([]bool, len(dims))
	for _, a := range axes {
		axis, ok := axisIn(a, len(dims))
		if !ok {
			return nil, noAxis
		}
		if dims[axis].counts() {
			return nil, overRows
		}
		marked[axis] = true
	}
	return marked, ""
}

func followSqueeze(f *flowAnalysis, s *step) ([]flowValue, string) {
	v, _ := f.input(s, 0)
	if v.dims == nil {
		return nil, noDims
	}
	axes, given, ok := f.constantInts(s, "axes", 1)
	if !ok {
		return nil, noAxis
	}
	if !given {
		for i, d := range v.dims {
			if !d.isFixed() {
				return nil, noAxis
			}
			if d.isOne() {
				axes = append(axes, int64(i))
			}
		}
	}
	gone, why := markAxes(v.dims, axes)
	if why != "" {
		return nil, why
	}
	out := []size{}
	for i, d := range v.dims {
		if !gone[i] {
			out = append(out, d)
		}
	}
	return []flowValue{{dims: out, ints: v.ints}}, ""
}

func followUnsqueeze(f *flowAnalysis, s *step) ([]flowValue, string) {
	v, _ := f.input(s, 0)
	axes, given, ok := f.constantInts(s, "axes", 1)
	if v.dims == nil || !given || !ok {
		return nil, noAxis
	}
	rank := len(v.dims) + len(axes)
	added := make([]bool, rank)
	for _, a := range axes {
		axis, ok := axisIn(a, rank)
		if !ok || added[axis] {
			return nil, noAxis
		}
		added[axis] = true
	}
	out, rest := []size{}, v.dims
	for i := range rank {
		if added[i] {
			out = append(out, fixedSize(1))
		} else {
			out, rest = append(out, rest[0]), rest[1:]
		}
	}
	return []flowValue{{dims: out, ints: keptInts(v, out)}}, ""
}

func followTranspose(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	permutation, given := s.ints["perm"]
	if dims == nil || given && len(permutation) != len(dims) {
		return nil, noDims
	}
	out := []size{}
	for i := range dims {
		from := len(dims) - 1 - i
		if given {
			from = int(permutation[i])
		}
		if from < 0 || from >= len(dims) {
			return nil, noAxis
		}
		out = append(out, dims[from])
	}
	return one(out)
}

func followExpand(f *flowAnalysis, s *step) ([]flowValue, string) {
	to, _ := f.input(s, 1)
	if to.ints == nil {
		return nil, noShape
	}
	dims, why := f.broadcastSizes(f.inputDims(s, 0), to.ints)
	if why != "" {
		return nil, why
	}
	return one(dims)
}

func followTile(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	repeats, _ := f.input(s, 1)
	if dims == nil || len(repeats.ints) != len(dims) {
		return nil, noDims
	}
	out := []size{}
	for i, d := range dims {
		n := repeats.ints[i]
		switch {
		case n.isOne():
			out = append(out, d)
		case d.isOne() && n.equals(n.asRows()):
			out = append(out, n)
		case d.counts() || n.counts():
			return nil, overRows
		default:
			out = append(out, d.times(n))
		}
	}
	return one(out)
}

func followConcatSizes(f *flowAnalysis, s *step) ([]flowValue, string) {
	var dims []size
	var ints []size
	known := true
	axis := 0
	for i := range s.inputs {
		v, _ := f.input(s, i)
		if v.dims == nil {
			return nil, noDims
		}
		if known = known && v.ints != nil; known {
			ints = append(ints, v.ints...)
		}
		if i == 0 {
			var ok bool
			if axis, ok = axisIn(s.intAttribute("axis", 1), len(v.dims)); !ok {
				return nil, noAxis
			}
			if v.dims[axis].counts() {
				return nil, joins
			}
			dims = slices.Clone(v.dims)
			continue
		}
		if len(v.dims) != len(dims) {
			return nil, noDims
		}
		for j, d := range v.dims {
			switch {
			case j == axis && d.counts():
				return nil, joins
			case j == axis && d.isFixed() && dims[j].isFixed():
				dims[j] = fixedSize(dims[j].factor + d.factor)
			case j == axis:
				dims[j] = f.newSize()
			case dims[j].equals(d):
			case dims[j].asRows().equals(d.asRows()):
				dims[j] = d.asRows()
			case dims[j].counts() != d.counts():
				return nil, certain(meets, mayMeet, dims[j], d)
			case !dims[j].isFixed():
				dims[j] = d
			}
		}
	}
	if dims == nil {
		return nil, noDims
	}
	out := flowValue{dims: dims}
	if known && len(dims) == 1 {
		out.ints = ints
	}
	return []flowValue{out}, ""
}

func followSplitSizes(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	axis, ok := axisIn(s.intAttribute("axis", 0), len(dims))
	if !ok {
		return nil, noAxis
	}
	if dims[axis].counts() {
		return nil, overRows
	}
	sizes, given, ok := f.constantInts(s, "split", 1)
	var out []flowValue
	for i := range s.outputs {
		d := slices.Clone(dims)
		n := int64(len(s.outputs))
		switch {
		case given && ok && i < len(sizes):
			d[axis] = fixedSize(sizes[i])
		case !given && d[axis].isFixed() && d[axis].factor%n == 0:
			d[axis] = fixedSize(d[axis].factor / n)
		default:
			d[axis] = f.newSize()
		}
		out = append(out, flowValue{dims: d})
	}
	return out, ""
}

func followSlice(f *flowAnalysis, s *step) ([]flowValue, string) {
	v, _ := f.input(s, 0)
	if v.dims == nil {
		return nil, noDims
	}
	starts, _, ok := f.constantInts(s, "starts", 1)
	ends, _, ok2 := f.constantInts(s, "ends", 2)
	axes, given, ok3 := f.constantInts(s, "axes", 3)
	steps, stepped, ok4 := f.constantInts(s, "steps", 4)
	if !ok3 || !ok4 && stepped {
		return nil, noAxis
	}
	for i := range s.inputs {
		if w, _ := f.input(s, i); i > 0 && w.from&perRow != 0 {
			return nil, "its bounds come from rows"
		}
	}
	out := slices.Clone(v.dims)
	if !given { // the first ones, as many as there are bounds
		n := len(starts)
		if bound, _ := f.input(s, 1); !ok && len(bound.dims) == 1 && bound.dims[0].isFixed() {
			n = int(bound.dims[0].factor)
		} else if !ok {
			return nil, noAxis
		}
		for i := range n {
			axes = append(axes, int64(i))
		}
	}
	var ints []size
	for i, a := range axes {
		axis, in := axisIn(a, len(out))
		if !in {
			return nil, noAxis
		}
		exact := ok && ok2 && i < len(starts) && i < len(ends)
		step := int64(1)
		if stepped {
			if i >= len(steps) || steps[i] == 0 {
				return nil, noAxis
			}
			step = steps[i]
		}
		d := out[axis]
		switch {
		case exact && starts[i] == 0 && ends[i] >= 1<<31-1 && step == 1: // all of it
			if v.ints != nil && len(axes) == 1 {
				ints = v.ints
			}
		case d.counts():
			return nil, overRows
		case exact && d.isFixed():
			indices := sliceIndices(d.factor, starts[i], ends[i], step)
			out[axis] = fixedSize(int64(len(indices)))
			if v.ints != nil && len(axes) == 1 && int64(len(v.ints)) == d.factor {
				ints = []size{}
				for _, j := range indices {
					ints = append(ints, v.ints[j])
				}
			}
		default:
			out[axis] = f.newSize()
		}
	}
	return []flowValue{{dims: out, ints: ints}}, ""
}

func followPad(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	pads, given, ok := f.constantInts(s, "pads", 1)
	if _, named := f.input(s, 3); dims == nil || !given || !ok || named ||
		len(pads) != 2*len(dims) {
		return nil, noDims
	}
	if v, _ := f.input(s, 2); v.from&perRow != 0 {
		return nil, "its parameters come from rows"
	}
	out := slices.Clone(dims)
	for i := range out {
		n := pads[i] + pads[len(dims)+i]
		switch {
		case pads[i] == 0 && pads[len(dims)+i] == 0:
		case out[i].counts():
			return nil, overRows
		case out[i].isFixed():
			out[i] = fixedSize(out[i].factor + n)
		default:
			out[i] = f.newSize()
		}
	}
	return one(out)
}

func followGather(f *flowAnalysis, s *step) ([]flowValue, string) {
	data, _ := f.input(s, 0)
	index, _ := f.input(s, 1)
	axis, ok := axisIn(s.intAttribute("axis", 0), len(data.dims))
	if !ok || index.dims == nil {
		return nil, noAxis
	}
	if data.dims[axis].counts() {
		return nil, overRows
	}
	if data.from&perRow != 0 && index.from&perRow != 0 {
		return nil, byRows
	}
	if index.counted {
		return nil, notNumber
	}
	out := flowValue{dims: slices.Concat(data.dims[:axis], index.dims, data.dims[axis+1:])}
	if out.dims == nil {
		out.dims = []size{}
	}
	if data.ints != nil && index.ints != nil && len(data.dims) == 1 && len(index.dims) <= 1 {
		out.ints = []size{}
		for _, i := range index.ints {
			at, ok := axisIn(i.factor, len(data.ints))
			if !ok || !i.isFixed() {
				out.ints = nil
				break
			}
			out.ints = append(out.ints, data.ints[at])
		}
	}
	return []flowValue{out}, ""
}

func followGatherElements(f *flowAnalysis, s *step) ([]flowValue, string) {
	data, _ := f.input(s, 0)
	index, _ := f.input(s, 1)
	axis, ok := axisIn(s.intAttribute("axis", 0), len(data.dims))
	if !ok || len(index.dims) != len(data.dims) {
		return nil, noAxis
	}
	if data.dims[axis].counts() || index.counted {
		return nil, overRows
	}
	for i, d := range data.dims { // element i of a dimension meets element i of the other's
		e := index.dims[i]
		if i != axis && (d.counts() || e.counts()) && !d.equals(e) {
			return nil, certain(meets, mayMeet, d, e)
		}
	}
	return one(index.dims)
}

func followMatMul(f *flowAnalysis, s *step) ([]flowValue, string) {
	for i := 2; i < len(s.inputs); i++ {
		if v, _ := f.input(s, i); v.from&perRow != 0 {
			return nil, "its parameters come from rows"
		}
	}
	out, why := f.matMulSizes(f.inputDims(s, 0), f.inputDims(s, 1))
	if why != "" {
		return nil, why
	}
	return []flowValue{{dims: out}}, ""
}

func followGemm(f *flowAnalysis, s *step) ([]flowValue, string) {
	var sides [2][]size
	for i, attribute := range []string{"transA", "transB"} {
		dims := f.inputDims(s, i)
		if len(dims) != 2 {
			return nil, noDims
		}
		if s.intAttribute(attribute, 0) != 0 {
			dims = []size{dims[1], dims[0]}
		}
		sides[i] = dims
	}
	out, why := f.matMulSizes(sides[0], sides[1])
	if why != "" {
		return nil, why
	}
	if c, ok := f.input(s, 2); ok {
		if out, why = f.broadcastSizes(out, c.dims); why != "" {
			return nil, why
		}
	}
	return one(out)
}

// followEinsum follows equations with an arrow and without an ellipsis.
func followEinsum(f *flowAnalysis, s *step) ([]flowValue, string) {
	left, right, ok := strings.Cut(strings.ReplaceAll(s.texts["equation"], " ", ""), "->")
	terms := strings.Split(left, ",")
	if !ok || strings.Contains(left+right, ".") || len(terms) != len(s.inputs) {
		return nil, noEquation
	}
	byLabel := map[rune]size{}
	for i, term := range terms {
		dims := f.inputDims(s, i)
		if dims == nil || len(dims) != len(term) {
			return nil, noDims
		}
		for j, label := range term {
			have, ok := byLabel[label]
			if !ok {
				byLabel[label] = dims[j]
				continue
			}
			if strings.Count(term, string(label)) > 1 && (have.counts() || dims[j].counts()) {
				return nil, overRows
			}
			both, why := f.broadcastSizes([]size{have}, []size{dims[j]})
			if why != "" {
				return nil, why
			}
			byLabel[label] = both[0]
		}
	}
	for label, d := range byLabel {
		if d.counts() && !strings.ContainsRune(right, label) {
			return nil, "it sums over rows"
		}
	}
	out := []size{}
	for _, label := range right {
		out = append(out, byLabel[label])
	}
	return one(out)
}

func followReduce(f *flowAnalysis, s *step) ([]flowValue, string) {
	v, _ := f.input(s, 0)
	if v.dims == nil {
		return nil, noDims
	}
	axes, given, ok := f.constantInts(s, "axes", 1)
	if given && !ok {
		return nil, noAxis
	}
	if len(axes) == 0 {
		if s.intAttribute("noop_with_empty_axes", 0) != 0 {
			return one(v.dims)
		}
		for i := range v.dims {
			axes = append(axes, int64(i))
		}
	}
	gone, why := markAxes(v.dims, axes)
	if why != "" {
		return nil, why
	}
	keep := s.intAttribute("keepdims", 1) != 0
	out := []size{}
	for i, d := range v.dims {
		switch {
		case !gone[i]:
			out = append(out, d)
		case keep:
			out = append(out, fixedSize(1))
		}
	}
	made := flowValue{dims: out}
	if s.op == "ReduceProd" && v.ints != nil && len(out) <= 1 {
		made.ints = []size{productOf(v.ints)}
	}
	return []flowValue{made}, ""
}

func followArgument(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	axis, ok := axisIn(s.intAttribute("axis", 0), len(dims))
	if !ok {
		return nil, noAxis
	}
	if dims[axis].counts() {
		return nil, overRows
	}
	out := slices.Clone(dims)
	if s.intAttribute("keepdims", 1) != 0 {
		out[axis] = fixedSize(1)
	} else {
		out = slices.Delete(out, axis, axis+1)
	}
	return one(out)
}

func followTopK(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	axis, ok := axisIn(s.intAttribute("axis", -1), len(dims))
	if !ok {
		return nil, noAxis
	}
	if v, _ := f.input(s, 1); dims[axis].counts() || v.from&perRow != 0 || v.counted {
		return nil, overRows
	}
	out := slices.Clone(dims)
	if k, given, ok := f.constantInts(s, "k", 1); given && ok && len(k) == 1 {
		out[axis] = fixedSize(k[0])
	} else {
		out[axis] = f.newSize()
	}
	return []flowValue{{dims: out}, {dims: slices.Clone(out)}}, ""
}

// followAlong is of operators that work along one axis, which the second input may be.
func followAlong(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	axes := []int64{s.intAttribute("axis", -1)}
	if s.op == "CumSum" {
		var ok bool
		if axes, _, ok = f.constantInts(s, "", 1); !ok || len(axes) != 1 {
			return nil, noAxis
		}
	}
	axis, ok := axisIn(axes[0], len(dims))
	if !ok {
		return nil, noAxis
	}
	if dims[axis].counts() {
		return nil, overRows
	}
	return one(dims)
}

// followSoftmax: before operator set 13 all dimensions from the axis on are taken for one.
func followSoftmax(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	flat := f.signature.Opset < 13
	otherwise := int64(-1)
	if flat {
		otherwise = 1
	}
	axis, ok := axisIn(s.intAttribute("axis", otherwise), len(dims))
	if !ok {
		return nil, noAxis
	}
	over := dims[axis : axis+1]
	if flat {
		over = dims[axis:]
	}
	if countingDim(over) != -1 {
		return nil, overRows
	}
	return one(dims)
}

// followFrom is of operators that work over all dimensions from an axis on.
func followFrom(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	axis, ok := axisIn(s.intAttribute("axis", -1), len(dims))
	if !ok {
		return nil, noAxis
	}
	if countingDim(dims[axis:]) != -1 {
		return nil, overRows
	}
	for i := 1; i < len(s.inputs); i++ {
		if v, _ := f.input(s, i); v.from&perRow != 0 {
			return nil, "its parameters come from rows"
		}
	}
	mean := slices.Clone(dims)
	for i := axis; i < len(mean); i++ {
		mean[i] = fixedSize(1)
	}
	return []flowValue{{dims: dims}, {dims: mean}, {dims: mean}}, ""
}

func followBatchNormalization(f *flowAnalysis, s *step) ([]flowValue, string) {
	given := 0
	for _, name := range s.outputs {
		if name != "" {
			given++
		}
	}
	// Before operator set 7 is_test says that it is not in training; ONNX Runtime runs later ones.
	if s.intAttribute("training_mode", 0) != 0 || given > 1 ||
		f.signature.Opset < 7 && s.intAttribute("is_test", 0) == 0 {
		return nil, "it normalizes over the batch, as in training"
	}
	return followFirstRows(f, s)
}

// followFirstRows is of operators that keep the dimensions, and the elements of the first apart.
func followFirstRows(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	if at := countingDim(dims); dims == nil || at > 0 || at == -2 {
		return nil, overRows
	}
	for i := 1; i < len(s.inputs); i++ {
		if v, _ := f.input(s, i); v.from&perRow != 0 || countingDim(v.dims) != -1 {
			return nil, "its parameters come from rows"
		}
	}
	return one(dims)
}

func followDropout(f *flowAnalysis, s *step) ([]flowValue, string) {
	if _, training := f.input(s, 2); training ||
		f.signature.Opset < 7 && s.intAttribute("is_test", 0) == 0 {
		return nil, "it is random"
	}
	dims := f.inputDims(s, 0)
	if dims == nil {
		return nil, noDims
	}
	return []flowValue{{dims: dims}, {dims: dims}}, ""
}

// followImage is of operators on [rows, channels, ...].
func followImage(f *flowAnalysis, s *step) ([]flowValue, string) {
	out, why := followFirstRows(f, s)
	if why != "" {
		return nil, why
	}
	dims := slices.Clone(out[0].dims)
	if len(dims) < 3 {
		return nil, noDims
	}
	for i := 2; i < len(dims); i++ {
		dims[i] = f.newSize()
		if strings.HasPrefix(s.op, "Global") {
			dims[i] = fixedSize(1)
		}
	}
	if s.op == "Conv" {
		w := f.inputDims(s, 1)
		if len(w) != len(dims) {
			return nil, noDims
		}
		dims[1] = w[0]
	}
	return []flowValue{{dims: dims}, {dims: slices.Clone(dims)}}, ""
}

// followRecurrent follows [steps, rows, features] or, of layout 1, [rows, steps, features].
func followRecurrent(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	if len(dims) != 3 {
		return nil, noDims
	}
	steps, batch := 0, 1
	if s.intAttribute("layout", 0) != 0 {
		steps, batch = 1, 0
	}
	if dims[steps].counts() || dims[2].counts() {
		return nil, overRows
	}
	rows := dims[batch]
	for i, at := range map[int]int{4: 0, 5: batch, 6: batch} { // lengths, and the first states
		v, ok := f.input(s, i)
		if !ok {
			continue
		}
		if at >= len(v.dims) || !v.dims[at].asRows().equals(rows.asRows()) ||
			v.from&perRow != 0 && countingDim(v.dims) != at {
			return nil, overRows
		}
		if slices.Contains(v.dims[at].symbols, rowsSymbol) {
			rows = rows.asRows()
		}
	}
	for _, i := range []int{1, 2, 3, 7} {
		if v, _ := f.input(s, i); v.from&perRow != 0 {
			return nil, "its parameters come from rows"
		}
	}
	directions := fixedSize(1)
	if strings.EqualFold(s.texts["direction"], "bidirectional") {
		directions = fixedSize(2)
	}
	hidden := f.newSize()
	if n := s.intAttribute("hidden_size", 0); n > 0 {
		hidden = fixedSize(n)
	}
	all := []size{dims[steps], directions, rows, hidden}
	last := []size{directions, rows, hidden}
	if steps == 1 {
		all = []size{rows, dims[steps], directions, hidden}
		last = []size{rows, directions, hidden}
	}
	return []flowValue{{dims: all}, {dims: last}, {dims: last}}, ""
}

func followOneHot(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	if dims == nil {
		return nil, noDims
	}
	for _, i := range []int{1, 2} {
		if v, _ := f.input(s, i); v.from&perRow != 0 || v.counted {
			return nil, "its parameters come from rows"
		}
	}
	axis, ok := axisIn(s.intAttribute("axis", -1), len(dims)+1)
	if !ok {
		return nil, noAxis
	}
	return one(slices.Insert(slices.Clone(dims), axis, f.newSize()))
}

// followRowsOf is of operators of classical models, which make of a matrix another with as many
// rows or a label for each row.
func followRowsOf(f *flowAnalysis, s *step) ([]flowValue, string) {
	var rows *size
	for i := range s.inputs {
		dims := f.inputDims(s, i)
		if len(dims) != 2 || !dims[0].counts() || dims[1].counts() {
			return nil, "it does not work row by row on what has no rows"
		}
		if rows != nil && !rows.equals(dims[0]) {
			return nil, certain(meets, mayMeet, *rows, dims[0])
		}
		rows = &dims[0]
	}
	if rows == nil {
		return nil, noDims
	}
	columns := f.newSize()
	if n := max(len(s.ints["classlabels_ints"]), len(s.ints["classlabels_int64s"])); n > 0 {
		columns = fixedSize(int64(n))
	} else if n := s.intAttribute("n_targets", s.intAttribute("targets", 0)); n > 0 {
		columns = fixedSize(n)
	} else if s.op == "Normalizer" || strings.HasSuffix(s.op, "Regressor") &&
		len(s.ints["n_targets"])+len(s.ints["targets"]) == 0 {
		columns = fixedSize(1)
		if s.op == "Normalizer" {
			columns = f.inputDims(s, 0)[1]
		}
	}
	var out []flowValue
	labels := strings.HasSuffix(s.op, "Classifier")
	for i := range s.outputs {
		dims := []size{*rows, columns}
		if labels && i == 0 {
			dims = dims[:1]
		}
		out = append(out, flowValue{dims: dims})
	}
	return out, ""
}

// followFeatures is of ArrayFeatureExtractor, which picks elements of the last dimension. What it
// makes of a list is a matrix of one row.
func followFeatures(f *flowAnalysis, s *step) ([]flowValue, string) {
	data, _ := f.input(s, 0)
	index, _ := f.input(s, 1)
	if len(data.dims) == 0 || index.dims == nil {
		return nil, noDims
	}
	last := len(data.dims) - 1
	switch {
	case data.dims[last].counts() || index.counted:
		return nil, overRows
	case index.from&perRow != 0 && data.from&perRow != 0:
		return nil, byRows
	case index.from&perRow != 0 && !productOf(index.dims[:max(0, countingDim(index.dims))]).isOne():
		return nil, folds
	}
	out := slices.Clone(data.dims[:last])
	if last == 0 {
		out = []size{fixedSize(1)}
	}
	return one(append(out, productOf(index.dims)))
}

// followCategories is of OneHotEncoder, which adds a dimension behind the others.
func followCategories(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	if dims == nil {
		return nil, noDims
	}
	n := f.newSize()
	if list := s.ints["cats_int64s"]; len(list) > 0 {
		n = fixedSize(int64(len(list)))
	}
	return one(append(slices.Clone(dims), n))
}

func followRange(f *flowAnalysis, s *step) ([]flowValue, string) {
	for i := range s.inputs {
		if v, _ := f.input(s, i); v.from&perRow != 0 {
			return nil, "its parameters come from rows"
		}
	}
	return one([]size{f.newSize()})
}

func followTriangle(f *flowAnalysis, s *step) ([]flowValue, string) {
	dims := f.inputDims(s, 0)
	if len(dims) < 2 {
		return nil, noDims
	}
	if v, _ := f.input(s, 1); countingDim(dims[len(dims)-2:]) != -1 || v.from&perRow != 0 {
		return nil, overRows
	}
	return one(dims)
}
