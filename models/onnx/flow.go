package onnx

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/api/roles"
)

// This file proves which dimension of a tensor counts a query's rows or its users, and that what a
// row of an output holds depends on the same row of the inputs alone. It follows dimensions from
// the inputs through the operators that it knows. Where one may mix rows, or is not known, the rows
// are not independent: the proof is never wrong that they are, and may be that they are not.

// A DimensionKind says what a dimension counts.
type DimensionKind uint8

const (
	// OtherDimension counts neither rows nor users nor ragged values.
	OtherDimension DimensionKind = iota
	// RowDimension counts rows, UserDimension users.
	RowDimension
	UserDimension
	// RaggedDimension counts the values of a ragged input.
	RaggedDimension
)

// A Dimension is one of a tensor's.
type Dimension struct {
	Kind DimensionKind
	// Of is the input whose values a RaggedDimension counts.
	Of string
	// Size is the number of elements, for one row or user where the dimension counts these; Dynamic
	// if it is not known.
	Size int64
}

// A Flow is what is known of the dimensions of a graph's values.
type Flow struct {
	values  map[string]flowValue
	symbols []string // by symbol: the ragged input that it stands for, or ""
	outputs []ValueDescription
}

// A symbol stands for a number that is not known before the run.
type symbol int

const (
	rowsSymbol symbol = iota
	usersSymbol
	otherSymbols
)

// A size is a number of elements: the product of a factor and symbols, which are ascending.
type size struct {
	factor  int64
	symbols []symbol
}

func fixedSize(n int64) size { return size{factor: n} }

func (s size) isFixed() bool { return len(s.symbols) == 0 }

func (s size) isOne() bool { return s.factor == 1 && s.isFixed() }

func (s size) equals(t size) bool {
	return s.factor == t.factor && slices.Equal(s.symbols, t.symbols)
}

// counts reports whether the number depends on how many rows or users there are.
func (s size) counts() bool {
	return slices.Contains(s.symbols, rowsSymbol) || slices.Contains(s.symbols, usersSymbol)
}

func (s size) times(t size) size {
	symbols := slices.Concat(s.symbols, t.symbols)
	slices.Sort(symbols)
	return size{s.factor * t.factor, symbols}
}

// dividedBy returns s / t if that is a size whatever the symbols stand for.
func (s size) dividedBy(t size) (size, bool) {
	if t.factor == 0 || s.factor%t.factor != 0 {
		return size{}, false
	}
	symbols := slices.Clone(s.symbols)
	for _, x := range t.symbols {
		i := slices.Index(symbols, x)
		if i < 0 {
			return size{}, false
		}
		symbols = slices.Delete(symbols, i, i+1)
	}
	return size{s.factor / t.factor, symbols}, true
}

// asRows returns s with rows in the place of users: how many rows there are once the users are
// repeated for each.
func (s size) asRows() size {
	if !slices.Contains(s.symbols, usersSymbol) {
		return s
	}
	symbols := slices.Clone(s.symbols)
	for i := range symbols {
		if symbols[i] == usersSymbol {
			symbols[i] = rowsSymbol
		}
	}
	slices.Sort(symbols)
	return size{s.factor, symbols}
}

func productOf(dims []size) size {
	p := fixedSize(1)
	for _, d := range dims {
		p = p.times(d)
	}
	return p
}

// countingDim returns the dimension that counts rows or users: -1 if none does, -2 if several do.
func countingDim(dims []size) int {
	at := -1
	for i, d := range dims {
		n := 0
		for _, x := range d.symbols {
			if x == rowsSymbol || x == usersSymbol {
				n++
			}
		}
		if n > 1 || n == 1 && at >= 0 {
			return -2
		}
		if n == 1 {
			at = i
		}
	}
	return at
}

// sources are the kinds of inputs that a value depends on.
type sources uint8

const (
	fromRows sources = 1 << iota
	fromUsers
	fromQuery
)

// perRow are the sources that differ by row or user.
const perRow = fromRows | fromUsers

// A flowValue is what is known of a value of the graph.
type flowValue struct {
	dims  []size // nil: not known
	from  sources
	mixes string // why its rows may depend on one another; "" if they do not
	// ints are the elements of a value that holds few integers; nil: not known.
	ints []size
	// counted is whether the value depends on the number of rows or users.
	counted bool
}

// Flow follows the dimensions of the graph's values. stated are the roles of inputs that have not
// the role that their shape gives: rows, or a query's if the first dimension is fixed or there is
// none.
func (s *Signature) Flow(stated map[string]roles.Role) *Flow {
	f := &flowAnalysis{
		signature: s, constants: maps.Clone(s.constants), next: otherSymbols,
		flow: Flow{values: map[string]flowValue{}, outputs: s.Outputs, symbols: make([]string,
			otherSymbols)},
	}
	for name, c := range s.constants {
		f.flow.values[name] = c.toFlow()
	}
	for _, p := range slices.Concat(s.Inputs, s.Defaults) {
		delete(f.constants, p.Name)
		f.flow.values[p.Name] = f.inputValue(p, stated)
	}
	for i := range s.steps {
		f.followStep(&s.steps[i])
	}
	return &f.flow
}

// isCounted reports whether an element is a number of rows.
func isCounted(ints []size) bool { return slices.ContainsFunc(ints, size.counts) }

func (c constant) toFlow() flowValue {
	var v flowValue
	if c.shape != nil {
		v.dims = []size{}
	}
	for _, d := range c.shape {
		v.dims = append(v.dims, fixedSize(d))
	}
	if c.ints != nil {
		v.ints = []size{}
	}
	for _, n := range c.ints {
		v.ints = append(v.ints, fixedSize(n))
	}
	return v
}

// A flowAnalysis follows dimensions through a graph.
type flowAnalysis struct {
	signature *Signature
	constants map[string]constant
	next      symbol
	flow      Flow
}

// newSize returns a size that is not known.
func (f *flowAnalysis) newSize() size {
	f.flow.symbols = append(f.flow.symbols, "")
	f.next++
	return size{1, []symbol{f.next - 1}}
}

func (f *flowAnalysis) inputValue(p ValueDescription, stated map[string]roles.Role) flowValue {
	role, said := stated[p.Name]
	switch {
	case said:
	case p.IsScalar(), p.FixesFirst():
		role = roles.Query
	default:
		role = roles.Row
	}
	v := flowValue{from: fromRows}
	switch role {
	case roles.User:
		v.from = fromUsers
	case roles.Query:
		v.from = fromQuery
	}
	if p.Shape == nil {
		return v
	}
	v.dims = []size{}
	for i, d := range p.Shape {
		switch {
		case i == 0 && role == roles.Row:
			v.dims = append(v.dims, size{1, []symbol{rowsSymbol}})
		case i == 0 && role == roles.User:
			v.dims = append(v.dims, size{1, []symbol{usersSymbol}})
		case d == Dynamic:
			v.dims = append(v.dims, f.newSize())
			if i == 0 && role == roles.Ragged {
				f.flow.symbols[f.next-1] = p.Name
			}
		default:
			v.dims = append(v.dims, fixedSize(d))
		}
	}
	return v
}

// Dimensions returns the dimensions of a value; false if they are not known.
func (f *Flow) Dimensions(value string) ([]Dimension, bool) {
	v, ok := f.values[value]
	if !ok || v.dims == nil {
		return nil, false
	}
	all := []Dimension{}
	for _, d := range v.dims {
		one := Dimension{Size: d.factor}
		for _, x := range d.symbols {
			switch {
			case x == rowsSymbol:
				one.Kind = RowDimension
			case x == usersSymbol:
				one.Kind = UserDimension
			case f.symbols[x] != "":
				one.Kind, one.Of = RaggedDimension, f.symbols[x]
			default:
				one.Size = Dynamic
			}
		}
		all = append(all, one)
	}
	return all, true
}

// IsConstant reports whether a value is the same in each run.
func (f *Flow) IsConstant(value string) bool {
	v, ok := f.values[value]
	return ok && v.from == 0 && !v.counted
}

// An Independence says whether the rows of a value depend on one another.
type Independence struct {
	// Reason is why they may; "" if they are proven not to.
	Reason string
	// Unknown is whether the reason is that an operator, a dimension or a number is not known, so
	// that rows may be independent all the same.
	Unknown bool
}

// IsProven reports whether rows are independent.
func (i Independence) IsProven() bool { return i.Reason == "" }

// Independence says whether each row of the outputs depends on the same row of the inputs alone. An
// output without a row for each row makes them dependent.
func (f *Flow) Independence() Independence {
	for _, p := range f.outputs {
		if i := f.IndependenceOf(p.Name); !i.IsProven() {
			i.Reason = fmt.Sprintf("output %q: %s", p.Name, i.Reason)
			return i
		}
	}
	return Independence{}
}

// IndependenceOf is Independence of one value. A value of users alone has a row for each user.
func (f *Flow) IndependenceOf(value string) Independence {
	v := f.values[value]
	why := v.mixes
	switch {
	case why != "":
	case v.dims == nil:
		why = noDims
	case len(v.dims) == 0 || countingDim(v.dims) != 0:
		why = "its first dimension does not count rows"
	case v.dims[0].factor != 1 || len(v.dims[0].symbols) != 1:
		why = certain(several, maySeveral, v.dims[0])
	case v.counted:
		why = notNumber
	}
	return Independence{why, slices.ContainsFunc(unknowns, func(unknown string) bool {
		return strings.HasSuffix(why, unknown)
	})}
}

// followStep adds the outputs of a step.
func (f *flowAnalysis) followStep(s *step) {
	var all sources
	mixes, counted, asNumber := "", false, false
	for i, name := range slices.Concat(s.inputs, s.nested) {
		v := f.flow.values[name]
		all |= v.from
		counted = counted || v.counted
		at, isShape := shapeInputs[s.op]
		asNumber = asNumber || v.counted && !(isShape && i == at)
		if mixes == "" {
			mixes = v.mixes
		}
	}
	op := s.op
	if s.domain != "" && s.domain != "ai.onnx" {
		op = s.domain + "." + op
	}
	fail := func(why string) string {
		if why == "" {
			return ""
		}
		return fmt.Sprintf("%s %q: %s", op, strings.Join(s.outputs, ", "), why)
	}
	var outputs []flowValue
	if follow := flowOperators[op]; follow == nil {
		if mixes == "" && (all&perRow != 0 || counted) {
			mixes = fail(noOperator)
		}
	} else if mixes == "" {
		var why string
		outputs, why = follow(f, s)
		if why != "" {
			outputs = nil
			if all&perRow != 0 || counted {
				mixes = fail(why)
			}
		}
	}
	for i, name := range s.outputs {
		if name == "" {
			continue
		}
		v := flowValue{}
		if i < len(outputs) {
			v = outputs[i]
		}
		v.counted = isCounted(v.ints)
		if op != "Shape" && op != "Size" { // which take no element
			v.from |= all
		}
		v.mixes = mixes
		if mixes == "" {
			v.mixes = fail(f.checkValue(v, asNumber))
		}
		f.flow.values[name] = v
	}
}

// shapeInputs are the inputs of operators that are shapes, by number.
var shapeInputs = map[string]int{"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1}

// checkValue returns why the rows of a value may depend on one another, by its dimensions. asNumber
// is whether what it was made of holds a number of rows that is not for its shape.
func (f *flowAnalysis) checkValue(v flowValue, asNumber bool) string {
	at := countingDim(v.dims)
	switch {
	case at == -2:
		return "rows are in two dimensions"
	case asNumber && v.ints == nil:
		return notNumber
	case v.from&perRow == 0 || v.ints != nil:
		return ""
	case v.dims == nil:
		return noDims
	case at < 0 && !f.isRagged(v.dims),
		at >= 0 && v.from&fromRows != 0 && !slices.Contains(v.dims[at].symbols, rowsSymbol):
		return "what it makes of rows has no rows"
	}
	return ""
}

// isRagged reports whether a dimension counts values of a ragged input.
func (f *flowAnalysis) isRagged(dims []size) bool {
	for _, d := range dims {
		for _, x := range d.symbols {
			if f.flow.symbols[x] != "" {
				return true
			}
		}
	}
	return false
}

// input returns what is known of input i of a step; false if the step has none.
func (f *flowAnalysis) input(s *step, i int) (flowValue, bool) {
	if i >= len(s.inputs) || s.inputs[i] == "" {
		return flowValue{}, false
	}
	return f.flow.values[s.inputs[i]], true
}

// inputDims returns the dimensions of input i of a step; nil if they are not known.
func (f *flowAnalysis) inputDims(s *step, i int) []size {
	v, _ := f.input(s, i)
	return v.dims
}

// constantInts returns the integers of an attribute or of the constant that is input i; given is
// whether the step has either.
func (f *flowAnalysis) constantInts(s *step, attribute string, i int) (list []int64, given,
	ok bool) {
	if list, ok := s.ints[attribute]; ok {
		return list, true, true
	}
	v, given := f.input(s, i)
	if !given {
		return nil, false, true
	}
	if v.ints == nil {
		return nil, true, false
	}
	list = []int64{}
	for _, n := range v.ints {
		if !n.isFixed() {
			return nil, true, false
		}
		list = append(list, n.factor)
	}
	return list, true, true
}

// axisIn returns an axis that counts from the end if it is negative; false if there is none such.
func axisIn(axis int64, rank int) (int, bool) {
	if axis < 0 {
		axis += int64(rank)
	}
	return int(axis), axis >= 0 && axis < int64(rank)
}

// Reasons that several operators have.
const (
	noOperator = "the operator is not known to keep rows apart"
	noDims     = "its dimensions are not known"
	noAxis     = "its axis is not known"
	noShape    = "its new shape is not known"
	noEquation = "its equation is not known"
	overRows   = "it works over rows"
	byRows     = "indices of rows come from rows"
	meets      = "rows meet a dimension that is none"
	mayMeet    = "rows may meet a dimension that is none"
	folds      = "it folds rows"
	mayFold    = "it may fold rows"
	joins      = "it joins rows behind rows"
	several    = "it has several rows for each row"
	maySeveral = "it may have several rows for each row"
	notNumber  = "the number of rows is used as a number"
)

// unknowns are the reasons that say what is not known.
var unknowns = []string{
	noOperator, noDims, noAxis, noShape, noEquation, mayMeet, mayFold, maySeveral, joins,
}

// certain returns the reason why if the sizes that it is of are known but for rows and users, and
// may if they are not.
func certain(why, may string, dims ...size) string {
	for _, d := range dims {
		if slices.ContainsFunc(d.symbols, func(x symbol) bool { return x >= otherSymbols }) {
			return may
		}
	}
	return why
}

// one returns the outputs of a step with one.
func one(dims []size) ([]flowValue, string) {
	if dims == nil {
		return nil, noDims
	}
	return []flowValue{{dims: dims}}, ""
}

// broadcastSizes returns the dimensions of what an operator makes of each pair of elements.
func (f *flowAnalysis) broadcastSizes(a, b []size) ([]size, string) {
	if a == nil || b == nil {
		return nil, noDims
	}
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	for i, y := range b {
		at := len(a) - len(b) + i
		x := out[at]
		switch {
		case x.equals(y) || y.isOne():
		case x.isOne():
			out[at] = y
		case x.asRows().equals(y.asRows()):
			out[at] = x.asRows()
		case x.counts() || y.counts():
			return nil, certain(meets, mayMeet, x, y)
		case x.isFixed():
		case y.isFixed():
			out[at] = y
		default:
			out[at] = f.newSize()
		}
	}
	return out, ""
}

// reshapeSizes returns the dimensions of a value that is reshaped to the numbers to.
func (f *flowAnalysis) reshapeSizes(dims, to []size, allowZero bool) ([]size, string) {
	out := slices.Clone(to)
	fold := func() string { return certain(folds, mayFold, slices.Concat(dims, to)...) }
	open, known := -1, fixedSize(1)
	for i, d := range out {
		if d.isFixed() && d.factor == 0 && !allowZero {
			if i >= len(dims) {
				return nil, noDims
			}
			out[i] = dims[i]
		}
		if d.isFixed() && d.factor < 0 {
			if open >= 0 {
				return nil, noDims
			}
			open = i
			continue
		}
		known = known.times(out[i])
	}
	whole := productOf(dims)
	if slices.Contains(known.symbols, rowsSymbol) || slices.Contains(whole.symbols, rowsSymbol) {
		whole, known = whole.asRows(), known.asRows() // users are repeated for each row
		for i := range out {
			out[i] = out[i].asRows()
		}
	}
	from := countingDim(dims)
	if open >= 0 {
		rest, ok := whole.dividedBy(known)
		switch {
		case ok:
			out[open] = rest
		case from < 0 || known.counts() || !isSameStart(dims, out, from):
			if from >= 0 && !known.counts() {
				return nil, fold()
			}
			out[open] = f.newSize()
		default:
			return nil, fold()
		}
	}
	if from < 0 {
		return out, ""
	}
	at := countingDim(out)
	if at < 0 {
		return nil, fold()
	}
	before := productOf(dims[:from])
	if !productOf(out[:at]).equals(before) {
		return nil, fold()
	}
	return out, ""
}

// isSameStart reports whether a shape begins with the first n dimensions.
func isSameStart(dims, shape []size, n int) bool {
	return len(shape) > n && slices.EqualFunc(dims[:n], shape[:n], size.equals)
}

// matMulSizes returns the dimensions of a product of matrices.
func (f *flowAnalysis) matMulSizes(a, b []size) ([]size, string) {
	if len(a) == 0 || len(b) == 0 {
		return nil, noDims
	}
	x, y := a, b
	if len(a) == 1 {
		x = []size{fixedSize(1), a[0]}
	}
	if len(b) == 1 {
		y = []size{b[0], fixedSize(1)}
	}
	if x[len(x)-1].counts() || y[len(y)-2].counts() {
		return nil, "it sums over rows"
	}
	out, why := f.broadcastSizes(x[:len(x)-2], y[:len(y)-2])
	if why != "" {
		return nil, why
	}
	out = slices.Clone(out)
	if len(a) > 1 {
		out = append(out, x[len(x)-2])
	}
	if len(b) > 1 {
		out = append(out, y[len(y)-1])
	}
	return out, ""
}

// String returns the dimension for a message: "rows", "4 x rows", "12", "?".
func (d Dimension) String() string {
	name := map[DimensionKind]string{RowDimension: "rows", UserDimension: "users",
		RaggedDimension: "values of " + d.Of}[d.Kind]
	switch {
	case name == "" && d.Size == Dynamic:
		return "?"
	case name == "":
		return strconv.FormatInt(d.Size, 10)
	case d.Size == 1:
		return name
	case d.Size == Dynamic:
		return "? x " + name
	}
	return strconv.FormatInt(d.Size, 10) + " x " + name
}
