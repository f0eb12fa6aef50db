package onnx

import (
	"encoding/binary"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-serve/muster/api/tensor"
)

// lookups is a model whose input ids, of the shape, goes through nodes, which make "y". It has
// tables t10, t20 and t30 of as many rows, and the lists of integers of constants.
func lookups(kind tensor.DataType, shape []int64, constants map[string][]int64,
	nodes ...Node) *Model {
	m := &Model{
		Name:    "lookups",
		Inputs:  []ValueDescription{{Name: "ids", DataType: kind, Shape: shape}},
		Outputs: []ValueDescription{{Name: "y", DataType: tensor.FP32}},
		Nodes:   nodes,
	}
	for _, rows := range []int64{10, 20, 30} {
		m.Initializers = append(m.Initializers, Initializer{
			Name: "t" + strconv.Itoa(int(rows)), DataType: tensor.FP32, Shape: []int64{rows, 4},
			Data: make([]byte, rows*4*4),
		})
	}
	for name, list := range constants {
		m.Initializers = append(m.Initializers, Initializer{
			Name: name, DataType: tensor.Int64, Shape: []int64{int64(len(list))},
			Data: ints(list...),
		})
	}
	m.Initializers = append(m.Initializers, Initializer{
		Name: "one", DataType: tensor.Int64, Shape: []int64{}, Data: ints(1),
	})
	return m
}

func ints(list ...int64) (data []byte) {
	for _, i := range list {
		data = binary.LittleEndian.AppendUint64(data, uint64(i))
	}
	return data
}

// nodes reads nodes as "y = Gather(t10, ids) axis=1; ...".
func nodes(t testing.TB, text string) (all []Node) {
	t.Helper()
	for statement := range strings.SplitSeq(text, ";") {
		outputs, call, ok := strings.Cut(statement, "=")
		op, rest, ok2 := strings.Cut(call, "(")
		inputs, attributes, ok3 := strings.Cut(rest, ")")
		if !ok || !ok2 || !ok3 {
			t.Fatalf("no node: %q", statement)
		}
		n := Node{Op: strings.TrimSpace(op), Inputs: words(inputs), Outputs: words(outputs)}
		n.Domain, n.Op = path.Dir(n.Op), path.Base(n.Op)
		n.Domain = strings.TrimPrefix(n.Domain, ".")
		n.Name = n.Outputs[0]
		for _, a := range strings.Fields(attributes) {
			name, value, _ := strings.Cut(a, "=")
			var list []int64
			for _, v := range words(value) {
				i, err := strconv.ParseInt(v, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, i)
			}
			if strings.Contains(value, ",") {
				n.Attributes = append(n.Attributes, Attribute{name, list})
			} else {
				n.Attributes = append(n.Attributes, Attribute{name, list[0]})
			}
		}
		all = append(all, n)
	}
	return all
}

func words(text string) (all []string) {
	for word := range strings.SplitSeq(text, ",") {
		all = append(all, strings.TrimSpace(word))
	}
	return all
}

func TestBounds(t *testing.T) {
	const n = Dynamic
	lists := map[string][]int64{
		"two": {2, 1}, "at0": {0}, "at1": {1}, "at2": {2}, "back": {-1}, "min": {math.MinInt64},
		"max": {math.MaxInt64}, "flat": {-1}, "pairs": {0, -1, 2}, "wide": {-1, 3}, "four": {4},
		"cols": {0, 2},
	}
	type ids struct { // the input
		kind  tensor.DataType
		shape []int64
	}
	three := ids{tensor.Int64, []int64{n, 3}}
	of := func(shape ...int64) ids { return ids{tensor.Int64, shape} }
	for name, tt := range map[string]struct {
		ids
		nodes string
		want  []int64
	}{
		"plain":       {three, "y = Gather(t10, ids)", []int64{10}},
		"list":        {of(n), "y = Gather(t10, ids)", []int64{10}},
		"any columns": {of(n, n), "y = Gather(t10, ids)", []int64{10}},
		"second axis": {three, "y = Gather(t10, ids) axis=-1", []int64{4}},
		"two tables": {three, "a = Gather(t20, ids); b = Gather(t10, ids); y = Add(a, b)",
			[]int64{10}},
		"split": {three, "a, b = Split(ids, two) axis=1; c = Gather(t10, a); d = Gather(t20, b); " +
			"y = Concat(c, d) axis=1", []int64{10, 10, 20}},
		"part of it": {three, "a, b = Split(ids, two) axis=1; y = Gather(t20, b)",
			[]int64{0, 0, 20}},
		"equal parts": {three, "a, b, c = Split(ids) axis=-1; d = Gather(t10, a); " +
			"e = Gather(t20, b); f = Gather(t30, c); y = Concat(d, e, f) axis=1",
			[]int64{10, 20, 30}},
		"columns picked": {three, "a = Gather(ids, one) axis=1; b = Gather(t10, a); " +
			"c = Gather(ids, cols) axis=1; d = Gather(t30, c); y = Mul(b, d)",
			[]int64{30, 10, 30}},
		"slice": {three, "a = Slice(ids, at1, max, at1); y = Gather(t10, a)",
			[]int64{0, 10, 10}},
		"backwards": {three, "a = Slice(ids, back, min, at1, back); " +
			"b, c = Split(a, two) axis=1; d = Gather(t10, b); e = Gather(t20, c); " +
			"y = Concat(d, e) axis=1", []int64{20, 10, 10}},
		"slice of rows": {three, "a = Slice(ids, at0, at1, at0); y = Gather(t10, a)", nil},
		"every row": {three, "a = Slice(ids, at0, max, at0); y = Gather(t10, a)",
			[]int64{10}},
		"shapes": {three, "a = Unsqueeze(ids, at1); b = Squeeze(a, at1); c = Flatten(b); " +
			"d = Reshape(c, wide); e = Identity(d); f = Gather(e, one) axis=1; " +
			"y = Gather(t10, f)", []int64{0, 10, 0}},
		"in pairs": {of(n, 4), "a = Reshape(ids, pairs); b = Gather(a, one) axis=2; " +
			"y = Gather(t10, b)", []int64{0, 10, 0, 10}},
		"in any order": {three, "a = Reshape(ids, flat); y = Gather(t10, a)", []int64{10}},
		"part of any order": {three, "a = Reshape(ids, flat); b = Slice(a, at1, max); " +
			"y = Gather(t10, b)", nil},
		"transposed": {three, "a = Transpose(ids); b = Gather(a, one); y = Gather(t10, b)",
			[]int64{0, 10, 0}},
		"bags": {of(n, 2, n), "a = Gather(ids, one) axis=1; y = Gather(t10, a)",
			[]int64{0, 10}},
		"third dimension": {of(n, 2, 2), "a, b = Split(ids) axis=2; c = Gather(t10, a); " +
			"d = Gather(t20, b); y = Add(c, d)", []int64{20}},
		"joined": {three, "a = Gather(ids, at0) axis=1; b = Gather(ids, at2) axis=1; " +
			"c = Concat(a, b) axis=1; d = Gather(c, at1) axis=1; y = Gather(t10, d)",
			[]int64{0, 0, 10}},
		"wider": {ids{tensor.Int32, []int64{n, 3}}, "a = Cast(ids) to=7; y = Gather(t10, a)",
			[]int64{10}},
		"narrower": {three, "a = Cast(ids) to=6; y = Gather(t10, a)", nil},
		"no sign": {ids{tensor.Uint64, []int64{n, 3}}, "a = Cast(ids) to=7; y = Gather(t10, a)",
			nil},
		"bytes": {ids{tensor.Uint8, []int64{n, 3}}, "a = Cast(ids) to=6; y = Gather(t10, a)",
			[]int64{10}},
		"floats": {ids{tensor.FP32, []int64{n, 3}}, "a = Cast(ids) to=7; y = Gather(t10, a)",
			nil},
		"computed":       {three, "a = Mod(ids, four); y = Gather(t10, a)", nil},
		"unused":         {three, "a = Gather(t10, ids); y = Cast(ids) to=1", nil},
		"shape alone":    {three, "a = Gather(t10, ids); b = Shape(a); y = Cast(b) to=1", nil},
		"other operator": {three, "y = mine/Gather(t10, ids)", nil},
		"elements":       {of(n, 4), "y = GatherElements(t10, ids)", []int64{10}},
		"coordinates":    {of(n, 2), "y = GatherND(t10, ids)", []int64{10, 4}},
		"rows":           {of(n, 1), "y = GatherND(t10, ids)", []int64{10}},
		"computed table": {three, "a = Concat(t10, t20) axis=0; b = Cast(a) to=10; " +
			"c = Transpose(b) perm=1,0; y = Gather(c, ids) axis=1", []int64{30}},
	} {
		t.Run(name, func(t *testing.T) {
			m := lookups(tt.kind, tt.shape, lists, nodes(t, tt.nodes)...)
			s, err := ReadSignature(write(t, m.Marshal()))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, s.Bounds["ids"]); diff != "" {
				t.Errorf("bounds (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBoundsOfTables: the size of a table is known wherever its elements are.
func TestBoundsOfTables(t *testing.T) {
	for _, data := range []func(*Initializer){
		func(*Initializer) {},
		func(i *Initializer) {
			i.Data, i.External = nil, External{Location: "t.data",
				Length: 160}
		},
	} {
		m := lookups(tensor.Int64, []int64{Dynamic, 3}, nil, nodes(t, "y = Gather(t10, ids)")...)
		data(&m.Initializers[0])
		file := write(t, m.Marshal())
		err := os.WriteFile(filepath.Join(filepath.Dir(file), "t.data"), make([]byte, 160), 0o644)
		if err != nil {
			t.Fatal(err)
		}
		s, err := ReadSignature(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string][]int64{"ids": {10}}, s.Bounds); diff != "" {
			t.Errorf("bounds (-want +got):\n%s", diff)
		}
	}
}
