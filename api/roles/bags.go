package roles

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/tensor"
)

// maxBytes bounds the memory that repeating the inputs of a user takes: a shape of a few bytes could
// ask for any amount. Chosen: histories of some KiB, for some thousand rows, take some MiB.
const maxBytes = 512 << 20

// units returns for how many rows, or users, an index of the feature is. It is false if its shape
// does not fit.
func (f *Feature) units(index *tensor.Tensor) (int, bool) {
	keys := int64(f.keys())
	switch shape := index.Shape; {
	case len(shape) == 2 && f.Form == Lengths && f.KeyMajor && shape[0] == keys:
		return int(shape[1]), true
	case len(shape) == 2 && f.Form == Lengths && !f.KeyMajor && shape[1] == keys:
		return int(shape[0]), true
	case len(shape) == 1:
		n := shape[0]
		if f.endsWithLast() {
			n--
		}
		return int(n / keys), n >= 0 && n%keys == 0
	}
	return 0, false
}

// endsWithLast reports whether the index has one more number than bags.
func (f *Feature) endsWithLast() bool {
	return f.Form == RowSplits || f.Form == Offsets && f.LastOffset
}

// expects says which shape the index has.
func (f *Feature) expects() string {
	bags := "N"
	if f.Per == User {
		bags = "1 or N"
	}
	if k := f.keys(); k > 1 {
		bags = fmt.Sprintf("%d x %s", k, bags)
	}
	if f.endsWithLast() {
		bags += " + 1"
	}
	return fmt.Sprintf("[%s]", bags)
}

// Bags are a feature of one query: which values are of which row, or user, and key.
type bags struct {
	f                      *Feature
	values, weights, index *tensor.Tensor // weights may be nil
	n                      int            // rows or users
	groups                 int            // keys that lie one after the other; 1 unless key-major
	per                    int            // bags of a row in a group
	// ends are where bags end, after a 0: bag i of row r in group g has the values from
	// ends[(g*n+r)*per+i] on, to the next of ends.
	ends []int64
}

// bagsOf reads the feature of a query. The error names the input, the row and the value that do not
// fit.
func (f *Feature) bagsOf(inputs []tensor.Tensor) (*bags, error) {
	b := &bags{f: f, values: find(inputs, f.Values), index: find(inputs, f.Index)}
	if b.values == nil || b.index == nil {
		missing := f.Values
		if b.values != nil {
			missing = f.Index
		}
		return nil, fmt.Errorf("input %q is missing", missing)
	}
	if len(b.values.Shape) == 0 {
		return nil, fmt.Errorf("input %q: a scalar, want the values of all rows", f.Values)
	}
	if f.Weights != "" {
		if b.weights = find(inputs, f.Weights); b.weights == nil {
			return nil, fmt.Errorf("input %q is missing", f.Weights)
		}
		if len(b.weights.Shape) == 0 || b.weights.Shape[0] != b.values.Shape[0] {
			return nil, fmt.Errorf("input %q: shape %v, want a weight for each of the %d values of input "+
				"%q", f.Weights, b.weights.Shape, b.values.Shape[0], f.Values)
		}
	}
	var ok bool
	if b.n, ok = f.units(b.index); !ok {
		return nil, fmt.Errorf("input %q: shape %v, want %s for N rows: it has the %s of input %q",
			f.Index, b.index.Shape, f.expects(), f.Form, f.Values)
	}
	b.groups, b.per = 1, f.keys()
	if f.KeyMajor {
		b.groups, b.per = f.keys(), 1
	}
	return b, b.readEnds()
}

// readEnds reads the index, and checks it.
func (b *bags) readEnds() error {
	size := b.index.DataType.Size()
	if b.index.DataType != tensor.Int64 && b.index.DataType != tensor.Int32 {
		return fmt.Errorf("input %q: type %s, want INT64 or INT32: it has %s", b.f.Index,
			b.index.DataType, b.f.Form)
	}
	count := b.n * b.groups * b.per
	entries := count
	if b.f.endsWithLast() {
		entries++
	}
	if len(b.index.Data)%size != 0 || len(b.index.Data)/size != entries { // no product overflows
		return fmt.Errorf("input %q: %d bytes, want as many as shape %v of %s has", b.f.Index,
			len(b.index.Data), b.index.Shape, b.index.DataType)
	}
	at := func(i int) int64 {
		if size == 4 {
			return int64(int32(binary.LittleEndian.Uint32(b.index.Data[4*i:])))
		}
		return int64(binary.LittleEndian.Uint64(b.index.Data[8*i:]))
	}
	total := b.values.Shape[0]
	b.ends = make([]int64, 1, count+1)
	if b.f.Form == Lengths {
		for i := range count {
			n, end := at(i), b.ends[i]
			if n < 0 {
				return fmt.Errorf("input %q: %s has the length %d, want 0 or more", b.f.Index, b.where(i), n)
			}
			if n > total-end {
				return fmt.Errorf("input %q: %s has the length %d, want at most %d: input %q has %d values",
					b.f.Index, b.where(i), n, total-end, b.f.Values, total)
			}
			b.ends = append(b.ends, end+n)
		}
		if end := b.ends[count]; end != total {
			return fmt.Errorf("input %q: the lengths of %d rows add up to %d, want %d: input %q has so "+
				"many values", b.f.Index, b.n, end, total, b.f.Values)
		}
		return nil
	}
	for i := range entries {
		offset, low := at(i), b.ends[max(0, i-1)]
		switch {
		case i == 0 && offset != 0:
			return fmt.Errorf("input %q: %s begins at %d, want 0", b.f.Index, b.where(0), offset)
		case offset < low || offset > total:
			return fmt.Errorf("input %q: %s begins at %d, want %d to %d: input %q has %d values",
				b.f.Index, b.where(i), offset, low, total, b.f.Values, total)
		case i == count && offset != total:
			return fmt.Errorf("input %q: the last of the %s is %d, want %d: input %q has so many values",
				b.f.Index, b.f.Form, offset, total, b.f.Values)
		case i > 0:
			b.ends = append(b.ends, offset)
		}
	}
	if !b.f.endsWithLast() && count > 0 {
		b.ends = append(b.ends, total)
	}
	if end := b.ends[count]; end != total {
		return fmt.Errorf("input %q: %d rows, but input %q has %d values, want 0", b.f.Index, b.n,
			b.f.Values, total)
	}
	return nil
}

// where names the row, or user, of a bag, and its key if there are several.
func (b *bags) where(i int) string {
	row, key := i/b.per, i%b.per
	if b.groups > 1 {
		row, key = i%max(1, b.n), i/max(1, b.n)
	}
	what := "row"
	if b.f.Per == User {
		what = "user"
	}
	if b.f.keys() > 1 {
		return fmt.Sprintf("key %d of %s %d", key, what, row)
	}
	return fmt.Sprintf("%s %d", what, row)
}

// A piece is rows of a feature of a query, times times one after the other.
type piece struct {
	*bags
	from, to, times int
}

// join returns the feature of a query that consists of pieces. It shares the memory of a single
// piece's values where these lie one after the other.
func (f *Feature) join(pieces []piece) (values, weights, index tensor.Tensor, err error) {
	first := pieces[0].bags
	var lengths []int64
	var spans []span
	total, rows := int64(0), 0
	for _, p := range pieces {
		rows += (p.to - p.from) * p.times
	}
	for g := range first.groups {
		for i, p := range pieces {
			at, end := (g*p.n+p.from)*p.per, (g*p.n+p.to)*p.per
			for range p.times {
				for j := at; j < end; j++ {
					lengths = append(lengths, p.ends[j+1]-p.ends[j])
				}
				s := span{i, p.ends[at], p.ends[end]}
				if last := len(spans) - 1; last >= 0 && spans[last].piece == i && spans[last].to == s.from {
					spans[last].to = s.to
				} else if s.to > s.from {
					spans = append(spans, s)
				}
				total += s.to - s.from
			}
		}
	}
	values, err = gather(pieces, spans, total, func(b *bags) *tensor.Tensor { return b.values })
	if err == nil && first.weights != nil {
		weights, err = gather(pieces, spans, total, func(b *bags) *tensor.Tensor { return b.weights })
	}
	return values, weights, f.encode(first.index, rows, lengths), err
}

// A span is values of a piece.
type span struct {
	piece    int
	from, to int64
}

// gather returns the tensor of the spans' values.
func gather(pieces []piece, spans []span, total int64,
	of func(*bags) *tensor.Tensor) (tensor.Tensor, error) {
	first := of(pieces[0].bags)
	t := tensor.Tensor{Name: first.Name, DataType: first.DataType, Shape: slices.Clone(first.Shape)}
	t.Shape[0] = total
	cuts := make([]*cutter, len(pieces))
	for i, p := range pieces {
		from := of(p.bags)
		if from.DataType != first.DataType || len(from.Shape) != len(first.Shape) ||
			!slices.Equal(from.Shape[1:], first.Shape[1:]) {
			return t, fmt.Errorf("input %q: %s %v and %s %v cannot be joined", t.Name, first.DataType,
				first.Shape, from.DataType, from.Shape)
		}
		var err error
		if cuts[i], err = newCutter(from); err != nil {
			return t, err
		}
	}
	if len(spans) == 1 {
		t.Data = cuts[spans[0].piece].cut(spans[0].from, spans[0].to)
		return t, nil
	}
	size := 0
	for _, s := range spans {
		if size += len(cuts[s.piece].cut(s.from, s.to)); size > maxBytes {
			return t, tooLarge(t.Name)
		}
	}
	t.Data = make([]byte, 0, size)
	for _, s := range spans {
		t.Data = append(t.Data, cuts[s.piece].cut(s.from, s.to)...)
	}
	return t, nil
}

func tooLarge(input string) error {
	return fmt.Errorf("input %q: repeated for each row it would take more than %d bytes", input,
		maxBytes)
}

// OneEach returns the index of a feature with one value in each bag of so many rows, or users. like has
// its name, type and rank.
func (f *Feature) OneEach(like tensor.Tensor, rows int) tensor.Tensor {
	lengths := make([]int64, rows*f.keys())
	for i := range lengths {
		lengths[i] = 1
	}
	return f.encode(&like, rows, lengths)
}

// IsIndex reports whether an input says which values of a ragged feature are whose.
func (r *Roles) IsIndex(input string) bool {
	return slices.ContainsFunc(r.Ragged, func(f Feature) bool { return f.Index == input })
}

// encode returns the index of a feature whose bags have these lengths, in the form of like.
func (f *Feature) encode(like *tensor.Tensor, rows int, lengths []int64) tensor.Tensor {
	numbers := lengths
	if f.Form != Lengths {
		numbers = make([]int64, 0, len(lengths)+1)
		at := int64(0)
		for _, n := range lengths {
			numbers = append(numbers, at)
			at += n
		}
		if f.endsWithLast() {
			numbers = append(numbers, at)
		}
	}
	t := tensor.Tensor{Name: like.Name, DataType: like.DataType, Shape: []int64{int64(len(numbers))}}
	if len(like.Shape) == 2 {
		t.Shape = []int64{int64(rows), int64(f.keys())}
		if f.KeyMajor {
			slices.Reverse(t.Shape)
		}
	}
	t.Data = make([]byte, 0, len(numbers)*like.DataType.Size())
	for _, n := range numbers {
		if like.DataType == tensor.Int32 {
			t.Data = binary.LittleEndian.AppendUint32(t.Data, uint32(n))
		} else {
			t.Data = binary.LittleEndian.AppendUint64(t.Data, uint64(n))
		}
	}
	return t
}

// A cutter cuts rows of the first dimension out of a tensor's data.
type cutter struct {
	data []byte
	row  int   // bytes; of strings not used
	ends []int // of strings: where rows end, after a 0
}

// newCutter returns what cuts t, whose data must fit its shape.
func newCutter(t *tensor.Tensor) (*cutter, error) {
	rows := int(t.Shape[0])
	n, err := tensor.Elements(t.Shape)
	if err != nil {
		return nil, fmt.Errorf("input %q: %w", t.Name, err)
	}
	c := &cutter{data: t.Data}
	if t.DataType != tensor.Bytes {
		size := t.DataType.Size()
		if size == 0 || len(t.Data)%size != 0 || len(t.Data)/size != n {
			return nil, fmt.Errorf("input %q: %d bytes, want as many as shape %v of %s has", t.Name,
				len(t.Data), t.Shape, t.DataType)
		}
		c.row = n / max(1, rows) * size
		return c, nil
	}
	if n > len(t.Data)/4 {
		return nil, fmt.Errorf("input %q: %d bytes, too few for shape %v of %s", t.Name, len(t.Data),
			t.Shape, t.DataType)
	}
	if n == 0 { // rows may be any number
		return c, nil
	}
	c.ends = make([]int, 1, min(rows, len(t.Data))+1)
	at := 0
	for i := range n {
		if len(t.Data)-at < 4 ||
			uint64(binary.LittleEndian.Uint32(t.Data[at:])) > uint64(len(t.Data)-at-4) {
			return nil, fmt.Errorf("input %q: element %d ends beyond the contents", t.Name, i)
		}
		at += 4 + int(binary.LittleEndian.Uint32(t.Data[at:]))
		if (i+1)%(n/rows) == 0 {
			c.ends = append(c.ends, at)
		}
	}
	if at != len(t.Data) {
		return nil, fmt.Errorf("input %q: %d bytes after the last element", t.Name, len(t.Data)-at)
	}
	return c, nil
}

// cut returns the data of rows, which must be there.
func (c *cutter) cut(from, to int64) []byte {
	if c.ends != nil {
		return c.data[c.ends[from]:c.ends[to]:c.ends[to]]
	}
	return c.data[int(from)*c.row : int(to)*c.row : int(to)*c.row]
}
