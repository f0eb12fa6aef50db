package roles_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
)

// of makes a tensor of values.
func of[T tensor.Element](t testing.TB, name string, values []T, shape ...int64) tensor.Tensor {
	t.Helper()
	made, err := tensor.Of(name, values, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// ranker returns the roles of a model with an input of a user, one of items, and a ragged feature.
func ranker(t testing.TB, f roles.Feature) *roles.Roles {
	t.Helper()
	r, err := roles.Complete(roles.Roles{
		Inputs: []roles.NamedRole{
			{"user", roles.User}, {"items", roles.Row}, {f.Values, roles.Ragged},
			{f.Index, roles.Ragged},
		},
		Outputs: []roles.NamedRole{{"scores", roles.Row}, {"of_user", roles.User}},
		Ragged:  []roles.Feature{f},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// show writes tensors of integers for a comparison.
func show(t testing.TB, inputs []tensor.Tensor) string {
	t.Helper()
	var b strings.Builder
	for _, in := range inputs {
		switch in.DataType {
		case tensor.Int64:
			v, err := tensor.Values[int64](in)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s%v=%v ", in.Name, in.Shape, v)
		case tensor.Int32:
			v, err := tensor.Values[int32](in)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s%v=%v ", in.Name, in.Shape, v)
		default:
			fmt.Fprintf(&b, "%s%v=%q ", in.Name, in.Shape, in.Data)
		}
	}
	return strings.TrimSpace(b.String())
}

// TestForms: each form of a ragged feature is split into parts and joined again, and the user's
// repeated for each row.
func TestForms(t *testing.T) {
	for _, tt := range []struct {
		name    string
		feature roles.Feature
		index   tensor.Tensor
		n       int64 // values
		parts   [2]string
		joined  string
	}{
		{"lengths", roles.Feature{Form: roles.Lengths},
			of(t, "index", []int64{2, 0, 3}, 3), 5,
			[2]string{"values[2]=[0 1] index[2]=[2 0]", "values[3]=[2 3 4] index[1]=[3]"},
			"values[10]=[0 1 2 3 4 0 1 2 3 4] index[6]=[2 0 3 2 0 3]"},
		{"offsets", roles.Feature{Form: roles.Offsets},
			of(t, "index", []int64{0, 2, 2}, 3), 5,
			[2]string{"values[2]=[0 1] index[2]=[0 2]", "values[3]=[2 3 4] index[1]=[0]"},
			"values[10]=[0 1 2 3 4 0 1 2 3 4] index[6]=[0 2 2 5 7 7]"},
		{"offsets with the last", roles.Feature{Form: roles.Offsets, LastOffset: true},
			of(t, "index", []int32{0, 2, 2, 5}, 4), 5,
			[2]string{"values[2]=[0 1] index[3]=[0 2 2]", "values[3]=[2 3 4] index[2]=[0 3]"},
			"values[10]=[0 1 2 3 4 0 1 2 3 4] index[7]=[0 2 2 5 7 7 10]"},
		{"row splits", roles.Feature{Form: roles.RowSplits},
			of(t, "index", []int64{0, 2, 2, 5}, 4), 5,
			[2]string{"values[2]=[0 1] index[3]=[0 2 2]", "values[3]=[2 3 4] index[2]=[0 3]"},
			"values[10]=[0 1 2 3 4 0 1 2 3 4] index[7]=[0 2 2 5 7 7 10]"},
		{"TorchRec", roles.Feature{Form: roles.Lengths, Keys: 2, KeyMajor: true},
			of(t, "index", []int64{1, 0, 2, 0, 1, 1}, 6), 5,
			[2]string{"values[2]=[0 3] index[4]=[1 0 0 1]", "values[3]=[1 2 4] index[2]=[2 1]"},
			"values[10]=[0 1 2 0 1 2 3 4 3 4] index[12]=[1 0 2 1 0 2 0 1 1 0 1 1]"},
		{"TorchRec in two dimensions", roles.Feature{Form: roles.Lengths, Keys: 2, KeyMajor: true},
			of(t, "index", []int32{1, 0, 2, 0, 1, 1}, 2, 3), 5,
			[2]string{"values[2]=[0 3] index[2 2]=[1 0 0 1]", "values[3]=[1 2 4] index[2 1]=[2 1]"},
			"values[10]=[0 1 2 0 1 2 3 4 3 4] index[2 6]=[1 0 2 1 0 2 0 1 1 0 1 1]"},
		{"rows of two keys", roles.Feature{Form: roles.Lengths, Keys: 2},
			of(t, "index", []int64{1, 0, 2, 0, 1, 1}, 3, 2), 5,
			[2]string{"values[3]=[0 1 2] index[2 2]=[1 0 2 0]", "values[2]=[3 4] index[1 2]=[1 1]"},
			"values[10]=[0 1 2 3 4 0 1 2 3 4] index[6 2]=[1 0 2 0 1 1 1 0 2 0 1 1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := tt.feature
			f.Values, f.Index, f.Per = "values", "index", roles.Row
			r := ranker(t, f)
			values := make([]int64, tt.n)
			for i := range values {
				values[i] = int64(i)
			}
			query := []tensor.Tensor{
				of(t, "user", []int64{7}, 1), of(t, "items", []int64{1, 2, 3}, 3),
				of(t, "values", values, tt.n), tt.index,
			}
			size, err := r.Check(query)
			if want := (roles.QuerySize{Rows: 3, Users: 1, Values: int(tt.n)}); err != nil ||
				size != want {
				t.Fatalf("got %+v, %v, want %+v", size, err, want)
			}
			parts, err := r.Split(query, []int{2, 1})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []string{
				"user[1]=[7] items[2]=[1 2] " + tt.parts[0],
				"user[1]=[7] items[1]=[3] " + tt.parts[1],
			} {
				if got := show(t, parts[i]); got != want {
					t.Errorf("part %d:\n%s, want\n%s", i, got, want)
				}
				if _, err := r.Check(parts[i]); err != nil {
					t.Errorf("part %d: %v", i, err)
				}
			}
			twice, err := r.Join([][]tensor.Tensor{query, query})
			if err != nil {
				t.Fatal(err)
			}
			want := "user[6]=[7 7 7 7 7 7] items[6]=[1 2 3 1 2 3] " + tt.joined
			if got := show(t, twice); got != want {
				t.Errorf("joined:\n%s, want\n%s", got, want)
			}
			again, err := r.Join(parts)
			if err != nil {
				t.Fatal(err)
			}
			whole, err := r.Repeat(query)
			if err != nil {
				t.Fatal(err)
			}
			if a, b := show(t, again), show(t, whole); a != b {
				t.Errorf("the parts joined:\n%s, want\n%s", a, b)
			}
		})
	}
}

// TestOfUser: a ragged feature of the user is copied to each part, and repeated in a merged run.
func TestOfUser(t *testing.T) {
	r := ranker(t, roles.Feature{
		Values: "values", Form: roles.Lengths, Index: "index", Per: roles.User,
	})
	query := func(user int64, items ...int64) []tensor.Tensor {
		return []tensor.Tensor{
			of(t, "user", []int64{user}, 1), of(t, "items", items, int64(len(items))),
			of(t, "values", []int64{user, user + 1}, 2), of(t, "index", []int64{2}, 1),
		}
	}
	parts, err := r.Split(query(5, 1, 2, 3), []int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := show(t, parts[1]),
		"user[1]=[5] items[2]=[2 3] values[2]=[5 6] index[1]=[2]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	run, err := r.Join([][]tensor.Tensor{query(5, 1, 2), query(8, 3)})
	if err != nil {
		t.Fatal(err)
	}
	want := "user[3]=[5 5 8] items[3]=[1 2 3] values[6]=[5 6 5 6 8 9] index[3]=[2 2 2]"
	if got := show(t, run); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	none := query(5)
	if size, err := r.Check(none); err != nil || size.Rows != 0 {
		t.Errorf("got %+v, %v, want no rows", size, err)
	}
	one, err := r.MakeRow(none)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := show(t, one),
		"user[1]=[5] items[1]=[0] values[2]=[5 6] index[1]=[2]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestRefusals: what does not add up is named, with the row and the value.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name    string
		feature roles.Feature
		index   []int64
		values  int64
		want    string
	}{
		{"negative", roles.Feature{Form: roles.Lengths}, []int64{2, -1, 4}, 5,
			`input "index": row 1 has the length -1, want 0 or more`},
		{"too many", roles.Feature{Form: roles.Lengths}, []int64{2, 9, 1}, 5,
			`input "index": row 1 has the length 9, want at most 3: input "values" has 5 values`},
		{"too few", roles.Feature{Form: roles.Lengths}, []int64{2, 1, 1}, 5,
			`input "index": the lengths of 3 rows add up to 4, want 5: input "values" has so many values`},
		{"overflow", roles.Feature{Form: roles.Lengths}, []int64{1<<63 - 1, 1<<63 - 1, 3}, 5,
			`input "index": row 0 has the length 9223372036854775807, want at most 5`},
		{"backwards", roles.Feature{Form: roles.Offsets}, []int64{0, 4, 3}, 5,
			`input "index": row 2 begins at 3, want 4 to 5: input "values" has 5 values`},
		{"not from 0", roles.Feature{Form: roles.Offsets}, []int64{1, 4, 4}, 5,
			`input "index": row 0 begins at 1, want 0`},
		{"the last", roles.Feature{Form: roles.Offsets, LastOffset: true}, []int64{0, 2, 3, 4}, 5,
			`input "index": the last of the offsets is 4, want 5`},
		{"row splits", roles.Feature{Form: roles.RowSplits}, []int64{0, 2, 3}, 3,
			`input "index": shape [3] has row_splits for 2, want them for each of the 3 rows of input "items"`},
		{"keys", roles.Feature{Form: roles.Lengths, Keys: 2, KeyMajor: true},
			[]int64{1, 1, 1, 1, -7, 1}, 5, `input "index": key 1 of row 1 has the length -7`},
		{"uneven keys", roles.Feature{Form: roles.Lengths, Keys: 2, KeyMajor: true},
			[]int64{1, 1, 1, 1, 1}, 5, `input "index": shape [5], want [2 x N] for N rows`},
		{"no rows, but values", roles.Feature{Form: roles.Offsets}, nil, 5,
			`input "index": 0 rows, but input "values" has 5 values, want 0`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := tt.feature
			f.Values, f.Index, f.Per = "values", "index", roles.Row
			_, err := ranker(t, f).Check([]tensor.Tensor{
				of(t, "user", []int64{7}, 1), of(t, "items", []int64{1, 2, 3}, 3),
				of(t, "values", make([]int64, tt.values), tt.values),
				of(t, "index", tt.index, int64(len(tt.index))),
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	r := ranker(t, roles.Feature{
		Values: "values", Form: roles.Lengths, Index: "index", Per: roles.Row,
	})
	_, err := r.Check([]tensor.Tensor{
		of(t, "user", []int64{7, 8}, 2), of(t, "items", []int64{1, 2, 3}, 3),
		of(t, "values", []int64{}, 0), of(t, "index", []int64{0, 0, 0}, 3),
	})
	if want := `input "user": 2 users, want 1, or one for each of the 3 rows of input "items"`; err == nil ||
		err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestAnswer: outputs have the query's rows, and one of the user, who must be the same in all.
func TestAnswer(t *testing.T) {
	r := ranker(t, roles.Feature{
		Values: "values", Form: roles.Lengths, Index: "index", Per: roles.Row,
	})
	outputs := []tensor.Tensor{
		of(t, "scores", []float32{1, 2, 3}, 3), of(t, "of_user", []float32{5, 5.000001, 5}, 3, 1),
	}
	if err := r.Answer(outputs, roles.QuerySize{Rows: 3}); err != nil ||
		!slices.Equal(outputs[1].Shape, []int64{1, 1}) || outputs[0].Shape[0] != 3 {
		t.Errorf("got %v, %v", outputs, err)
	}
	outputs = []tensor.Tensor{of(t, "scores", []float32{1}, 1), of(t, "of_user", []float32{5}, 1)}
	if err := r.Answer(outputs, roles.QuerySize{}); err != nil || outputs[0].Shape[0] != 0 ||
		len(outputs[0].Data) != 0 || outputs[1].Shape[0] != 1 {
		t.Errorf("of no rows: got %v, %v", outputs, err)
	}
	outputs = []tensor.Tensor{of(t, "of_user", []float32{5, 6}, 2)}
	if err := r.Answer(outputs, roles.QuerySize{Rows: 2}); err == nil ||
		!strings.Contains(err.Error(), `output "of_user"`) {
		t.Errorf("got %v, want an error that names the output", err)
	}
}

// TestText: roles survive their text form, and text that is none is an error.
func TestText(t *testing.T) {
	r := ranker(t, roles.Feature{
		Values: "values", Form: roles.Offsets, Index: "index", Per: roles.User, LastOffset: true,
	})
	again, err := roles.Parse(r.String())
	if err != nil || again.String() != r.String() || again.RoleOfInput("values") != roles.Ragged {
		t.Errorf("got %v, %v, want %v", again, err, r)
	}
	for _, text := range []string{
		"", "{", `{"inputs":[{"name":"x","role":"other"}]}`, `{"ragged":[{"values":"x"}]}`,
		`{"size_of":"x"}`, `{"outputs":[{"name":"y","role":"ragged"}]}`,
	} {
		if r, err := roles.Parse(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, r)
		}
	}
}

// FuzzRagged: whatever a client sends, the feature is refused or can be split, joined and repeated,
// and the parts have all values.
func FuzzRagged(f *testing.F) {
	f.Add(uint8(0), uint8(1), int64(3), int64(5), []byte{2, 0, 0, 0, 0, 0, 0, 0, 3},
		[]byte("12345"))
	f.Add(uint8(3), uint8(2), int64(4), int64(2), []byte{0, 1, 2}, []byte{})
	f.Add(uint8(9), uint8(0), int64(1)<<62, int64(1)<<61, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, form, keys uint8, n, values int64, index, data []byte) {
		kinds := []roles.Form{roles.Lengths, roles.Offsets, roles.RowSplits}
		feature := roles.Feature{
			Values: "values", Form: kinds[form%3], Index: "index", Per: roles.Row,
			Keys: int(keys) % 4, KeyMajor: form&4 != 0, LastOffset: form&8 != 0,
		}
		kind := tensor.Int64
		if form&16 != 0 {
			kind = tensor.Int32
		}
		shape := []int64{n}
		if form&32 != 0 {
			shape = append(shape, int64(keys))
		}
		of := tensor.Uint8
		if form&64 != 0 {
			of = tensor.Bytes
		}
		inputs := []tensor.Tensor{
			{Name: "values", DataType: of, Shape: []int64{values}, Data: data},
			{Name: "index", DataType: kind, Shape: shape, Data: index},
		}
		r, err := roles.Complete(roles.Roles{
			Inputs:  []roles.NamedRole{{"values", roles.Ragged}, {"index", roles.Ragged}},
			Outputs: []roles.NamedRole{{"y", roles.Row}}, Ragged: []roles.Feature{feature},
		})
		if err != nil {
			t.Fatal(err)
		}
		size, err := r.Check(inputs)
		if err != nil || size.Rows < 2 {
			return
		}
		parts, err := r.Split(inputs, []int{1, size.Rows - 1})
		if err != nil {
			return // the values' contents do not fit their shape, which others check
		}
		sum := 0
		for _, part := range parts {
			of, err := r.Check(part)
			if err != nil {
				t.Fatalf("a part of a valid query: %v", err)
			}
			sum += of.Values
		}
		if sum != size.Values {
			t.Fatalf("the parts have %d values, want %d", sum, size.Values)
		}
		again, err := r.Join(parts)
		if err != nil {
			t.Fatal(err)
		}
		for i := range again {
			if !slices.Equal(again[i].Data, inputs[i].Data) || !slices.Equal(again[i].Shape,
				inputs[i].Shape) {
				t.Fatalf("joined: %v, want %v", again[i], inputs[i])
			}
		}
	})
}
