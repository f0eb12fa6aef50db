package models

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// port makes a port of integers with names for the dimensions that are not numbers.
func port(name string, dims ...any) onnx.ValueDescription {
	p := onnx.ValueDescription{Name: name, DataType: tensor.Int64, Dims: []string{}}
	p.Shape = []int64{}
	for _, d := range dims {
		switch d := d.(type) {
		case int:
			p.Shape, p.Dims = append(p.Shape, int64(d)), append(p.Dims, "")
		case string:
			p.Shape, p.Dims = append(p.Shape, Dynamic), append(p.Dims, d)
		}
	}
	return p
}

// putModel puts a model with these ports into a repository, whose graph nobody runs.
func putModel(t *testing.T, inputs, outputs []onnx.ValueDescription, settings string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	m := onnx.Model{Name: "m", Inputs: inputs, Outputs: outputs}
	for _, out := range outputs {
		m.Nodes = append(m.Nodes, onnx.Node{
			Op: "Identity", Name: "of_" + out.Name, Inputs: []string{inputs[0].Name},
			Outputs: []string{out.Name},
		})
	}
	if err := os.MkdirAll(filepath.Join(dir, "m", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string][]byte{"1/model.onnx": m.Marshal(),
		ConfigFile: []byte(settings)} {
		if err := os.WriteFile(filepath.Join(dir, "m", path), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestInferredRoles: the names of dimensions tell candidates, users and ragged features apart;
// where they settle nothing, a version has no roles.
func TestInferredRoles(t *testing.T) {
	for _, tt := range []struct {
		name            string
		inputs, outputs []onnx.ValueDescription
		want            string // as describeRoles says it; "": none
		note            string
	}{
		{"one name", []onnx.ValueDescription{port("x", "batch", 4), port("y", "batch")},
			[]onnx.ValueDescription{port("z", "batch")}, "", ""},
		{"no names", []onnx.ValueDescription{port("x", "", 4), port("y", "")},
			[]onnx.ValueDescription{port("z", "")}, "", ""},
		{"tf2onnx's names", []onnx.ValueDescription{port("x", "unk__1", 4), port("y", "unk__2")},
			[]onnx.ValueDescription{port("z", "unk__3")}, "", ""},
		{"half of the names", []onnx.ValueDescription{port("x", "n", 4), port("y", "")},
			[]onnx.ValueDescription{port("z", "n")}, "", ""},
		{"a scalar", []onnx.ValueDescription{port("x", "n", 4), port("k")},
			[]onnx.ValueDescription{port("z", "n")}, "", ""},
		{"a user", []onnx.ValueDescription{port("user_id", "u"), port("item_ids", "n")},
			[]onnx.ValueDescription{port("scores", "n")}, "row item_ids; user user_id", ""},
		{"two dimensions of users",
			[]onnx.ValueDescription{port("user_id", "u"), port("history", "h", "t"), port("items",
				"n")},
			[]onnx.ValueDescription{port("scores", "n"), port("embedding", "u", 8)},
			"row items; user user_id, history, output embedding", ""},
		{"one user by shape", []onnx.ValueDescription{port("user_id", 1), port("item_ids", "n")},
			[]onnx.ValueDescription{port("scores", "n")}, "row item_ids; query user_id", ""},
		{"two by shape", []onnx.ValueDescription{port("user_id", 2), port("item_ids", "n")},
			[]onnx.ValueDescription{port("scores", "n")}, "", ""},
		{"nobody has rows", []onnx.ValueDescription{port("user_id", 1)},
			[]onnx.ValueDescription{port("scores", "n")}, "", ""},
		{"lengths", []onnx.ValueDescription{port("dense", "batch", 3), port("values", "total"),
			port("lengths", "batch")},
			[]onnx.ValueDescription{port("y", "batch", 5)},
			"row dense; ragged values by lengths lengths per row", ""},
		{"offsets alone", []onnx.ValueDescription{port("values", "nnz"), port("offsets", "n")},
			[]onnx.ValueDescription{port("scores", "n")},
			"ragged values by offsets offsets per row", ""},
		{"offsets with the last", []onnx.ValueDescription{port("x", "n"), port("values", "nnz"),
			port("offsets", "n_plus_1")},
			[]onnx.ValueDescription{port("scores", "n")},
			"row x; ragged values by offsets offsets per row", ""},
		{"offsets of two features with the last", []onnx.ValueDescription{
			port("a_values", "va"), port("a_offsets", "n1"), port("b_values", "vb"),
			port("b_offsets", "n1"),
		}, []onnx.ValueDescription{port("scores", "n")},
			"ragged a_values by offsets a_offsets per row; ragged b_values by offsets b_offsets per row", ""},
		{"row splits", []onnx.ValueDescription{port("x", "n"), port("tags/values", "v"),
			port("tags/row_splits", "s")},
			[]onnx.ValueDescription{port("scores", "n")},
			"row x; ragged tags/values by row_splits tags/row_splits per row", ""},
		{"key-major", []onnx.ValueDescription{port("x", "n"), port("values", "v"), port("lengths",
			26, "n")},
			[]onnx.ValueDescription{port("scores", "n")},
			"row x; ragged values by lengths lengths per row", ""},
		{"a user's history", []onnx.ValueDescription{
			port("user", "u"), port("items", "n"), port("h_values", "v"), port("h_lengths", "u"),
		}, []onnx.ValueDescription{port("scores", "n")},
			"row items; user user; ragged h_values by lengths h_lengths per user", ""},
		{"of how many", []onnx.ValueDescription{port("x", "n"), port("values", "v"),
			port("lengths", "fb")},
			[]onnx.ValueDescription{port("scores", "n")}, "",
			"ragged: [{values: values, lengths: lengths, per: row}]"},
		{"ragged without names", []onnx.ValueDescription{port("values", ""), port("lengths", "")},
			[]onnx.ValueDescription{port("scores", "")}, "",
			"look like the values and lengths of a ragged feature"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := ReadVersion(putModel(t, tt.inputs, tt.outputs, ""), "m", 1)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if v.Roles != nil {
				got = describeRoles(v.Roles)
				if v.Batchless || v.Config.LargestBatchSize != 4096 {
					t.Errorf("batchless is %t, largest batch size %d", v.Batchless,
						v.Config.LargestBatchSize)
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if notes := strings.Join(v.Config.Notes, "\n"); !strings.Contains(notes, tt.note) {
				t.Errorf("the notes are %q, want %q", notes, tt.note)
			}
			v, err = ReadVersion(putModel(t, tt.inputs, tt.outputs,
				"sent_once: false\nrequires: 2\n"),
				"m", 1)
			if err != nil || v.Roles != nil {
				t.Errorf("with sent_once: false: got %v, %v", v, err)
			}
		})
	}
}

// TestStatedRoles: a model.yaml says what the names of dimensions do not.
func TestStatedRoles(t *testing.T) {
	inputs := []onnx.ValueDescription{
		port("user", "batch", 8), port("items", "batch"), port("values", "batch"), port("lengths",
			"batch"),
		port("list", 1, "k", 4),
	}
	all := inputs[:4]
	named := []onnx.ValueDescription{port("user", "u", 8), port("items", "batch"),
		port("values", "v"), port("lengths", "batch")}
	for _, tt := range []struct {
		inputs         []onnx.ValueDescription
		settings, want string
	}{
		{all, "sent_once: [user]", "row items, values, lengths; user user"},
		{all, "inputs: [{name: user, role: user}, {name: values, role: query}]",
			"row items, lengths; user user; query values"},
		{all, "ragged: [{values: values, lengths: lengths, keys: 2, layout: key_major}]",
			"row user, items; ragged values by lengths lengths per row"},
		{all,
			"sent_once: [user]\nragged: [{values: values, offsets: lengths, per: user, last_offset: true}]",
			"row items; user user; ragged values by offsets lengths per user"},
		{inputs[4:], "size_of: list:1", "query list, output y; size of list:1"},
		// What is said of an input turns inference off for it, and not for others.
		{named, "inputs: [{name: user, role: query}]",
			"row items; query user; ragged values by lengths lengths per row"},
		{named, "sent_once: [user]",
			"row items; user user; ragged values by lengths lengths per row"},
		{named, "inputs: [{name: values, role: query}]", "row items, lengths; user user; query values"},
		{named, "ragged: [{values: values, offsets: lengths}]",
			"row items; user user; ragged values by offsets lengths per row"},
	} {
		v, err := ReadVersion(putModel(t, tt.inputs, []onnx.ValueDescription{port("y", "batch")},
			"requires: 2\n"+tt.settings), "m", 1)
		if err != nil {
			t.Errorf("%s: %v", tt.settings, err)
		} else if got := describeRoles(v.Roles); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.settings, got, tt.want)
		} else if strings.Contains(strings.Join(v.Config.Notes, "\n"), tt.want) ||
			!strings.Contains(v.DescribeRoles(), "as its settings say: "+tt.want) {
			t.Errorf("%s: notes %q, roles %q: roles are no fault", tt.settings, v.Config.Notes,
				v.DescribeRoles())
		}
		c, err := parseConfig("m.yaml", []byte("requires: 2\n"+tt.settings))
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseConfig("m.yaml", text); err != nil || again.SizeOf != c.SizeOf ||
			len(again.SentOnce) != len(c.SentOnce) || len(again.Ragged) != len(c.Ragged) ||
			len(c.Ragged) > 0 && again.Ragged[0] != c.Ragged[0] {
			t.Errorf("%s: written %s, read %+v, %v", tt.settings, text, again, err)
		}
	}
	for settings, want := range map[string]string{
		"sent_once: [user]\n": "m.yaml:1: the file says the roles of inputs or outputs, which older " +
			"versions of Muster do not know: it must say requires: 2, too",
		"requires: 2\nsent_once: user\n": "m.yaml:2: sent_once: got \"user\", expected a list of inputs, or false",
		"requires: 2\nsize_of: x:one\n": "m.yaml:2: size_of: got \"x:one\", " +
			"expected the name of an input, or NAME:DIMENSION",
		"requires: 2\nragged: [{values: v}]\n": "m.yaml:2: ragged[0]: expected values, and one of lengths, " +
			"offsets and row_splits",
		"requires: 2\nragged: [{values: v, lengths: l, offsets: o}]\n": "ragged[0].offsets: lengths is " +
			"given, too",
		"requires: 2\nragged: [{values: v, lengths: l, last_offset: true}]\n": "last_offset is of offsets",
		"requires: 2\nragged: [{values: v, lengths: l, per: item}]\n": `ragged[0].per: got "item", ` +
			`expected "row" or "user"`,
		"requires: 2\nragged: [{values: v, lengths: l, layout: other}]\n": `expected "key_major" ` +
			`or "row_major"`,
		"requires: 2\nragged: [{values: v, lengths: l, more: 1}]\n": `unknown key "ragged[0].more"`,
		"requires: 2\ninputs: [{name: x, role: item}]\n": `inputs[0].role: got "item", ` +
			`expected "row", "user" or "query"`,
		"requires: 2\nragged: [{values: v, lengths: l, keys: 0}]\nsize_of: x": `ragged[0].keys: got "0"`,
	} {
		if _, err := parseConfig("m.yaml", []byte(settings)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", settings, err, want)
		}
	}
	for settings, want := range map[string]string{
		"sent_once: [other]": `input "other": the model has user, items, values, lengths`,
		"size_of: other":     `input "other": the model has`,
		"size_of: user:2": "size_of is dimension 2 of input \"user\", " +
			"which has shape [-1 8]",
		"sent_once: [user, items, values, lengths]":    "no input has the role row",
		"ragged: [{values: values, lengths: missing}]": `ragged input "missing": the model has`,
		"sent_once: [user]\ninputs: [{name: user, role: row}]": `input "user" is in sent_once and has ` +
			`the role row`,
	} {
		_, err := ReadVersion(putModel(t, all, []onnx.ValueDescription{port("y", "batch")},
			"requires: 2\n"+settings), "m", 1)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", settings, err, want)
		}
	}
}

// TestQueryInputsAreNotMerged: what belongs to a query keeps its model from being merged, and what
// comes out of all rows from being split, too.
func TestQueryInputsAreNotMerged(t *testing.T) {
	for _, tt := range []struct {
		inputs, outputs []onnx.ValueDescription
		splits, merges  bool
	}{
		{[]onnx.ValueDescription{port("u", "u"), port("x", "n")}, []onnx.ValueDescription{port("y",
			"n")}, true, true},
		{[]onnx.ValueDescription{port("u", 1), port("x", "n")}, []onnx.ValueDescription{port("y",
			"n")}, true, false},
		{[]onnx.ValueDescription{port("u", "u"), port("x", "n")}, []onnx.ValueDescription{port("y",
			"n"), port("all")},
			false, false},
	} {
		v, err := ReadVersion(putModel(t, tt.inputs, tt.outputs, "rows_independent: true"), "m", 1)
		if err != nil {
			t.Fatal(err)
		}
		if v.Config.Splits() != tt.splits || v.Config.Merging().Merges() != tt.merges {
			t.Errorf("%s: splits %t, merges %t", describeRoles(v.Roles), v.Config.Splits(),
				v.Config.Merging().Merges())
		}
	}
	var _ roles.Role
}
