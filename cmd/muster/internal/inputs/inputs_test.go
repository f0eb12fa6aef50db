package inputs

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tensor/npz"
)

func TestJSON(t *testing.T) {
	const one = `{"inputs":[{"name":"x","datatype":"INT64","shape":[1,2],"data":[1,2]}]}`
	for text, want := range map[string]int{
		one: 1, one + "\n" + one + "\n": 2, one + one: 2,
		strings.ReplaceAll(one, ",", ",\n") + "\n\n" + one: 2,
	} {
		given, err := Read("-", strings.NewReader(text))
		if err != nil || len(given.Queries) != want || given.Rows != nil {
			t.Errorf("%q: got %+v, %v, want %d queries", text, given, err, want)
			continue
		}
		for _, q := range given.Queries {
			if values, err := tensor.Values[int64](q.Inputs[0]); err != nil ||
				!slices.Equal(values, []int64{1, 2}) {
				t.Errorf("%q: values %v, %v", text, values, err)
			}
		}
	}
	for text, want := range map[string]string{
		"":                      "no queries",
		one + "\n\n{\"inputs\"": "line 3: unexpected EOF",
		one + "\n" +
			`{"inputs":[{"name":"x","datatype":"INT64","shape":[9],"data":[1]}]}`: "line 2: " +
			`input "x": data: 1 elements, expected 9`,
		"[1]": "line 1",
		"x":   "line 1",
	} {
		if _, err := Read("-", strings.NewReader(text)); err == nil ||
			!strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "standard input") {
			t.Errorf("%q: got error %v, want %q in it", text, err, want)
		}
	}
	if _, err := ReadOne("-", strings.NewReader(one+one)); err == nil ||
		!strings.Contains(err.Error(), "2 queries, want one") {
		t.Errorf("two for one: got %v", err)
	}
}

// Rows come from an npz file with one array for each input; one query has all of them.
func TestRows(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, arrays ...tensor.Tensor) string {
		var b bytes.Buffer
		if err := npz.Write(&b, arrays); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ids := tensor.Tensor{Name: "ids", DataType: tensor.Uint8, Shape: []int64{3, 2},
		Data: []byte("123456")}
	x := tensor.Tensor{Name: "x", DataType: tensor.Int8, Shape: []int64{3}, Data: []byte("123")}
	want := []tensor.Tensor{x, ids}
	path := file("rows.npz", x, ids)
	given, err := Read(path, nil)
	if err != nil || len(given.Queries) != 0 || !reflect.DeepEqual(given.Rows, want) {
		t.Errorf("got %+v, %v, want %+v", given, err, want)
	}
	if one, err := ReadOne(path, nil); err != nil || !reflect.DeepEqual(one.Inputs, want) {
		t.Errorf("as one query: got %+v, %v, want %+v", one, err, want)
	}
	text := filepath.Join(dir, "text.npz")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	x.Data = nil
	for path, want := range map[string]string{
		text:                         "no npz file",
		file("none.npz"):             "no arrays, expected one for each input of the model",
		file("short.npz", ids, x):    `array "x": 0 bytes, expected 3 elements`,
		filepath.Join(dir, "no.npz"): "no such file",
	} {
		if _, err := Read(path, nil); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: got error %v, want %q in it", path, err, want)
		}
	}
}

func TestParseShapes(t *testing.T) {
	got, err := ParseShapes([]string{"images:1x3x320x320", "a:b:7"})
	want := map[string][]int64{"images": {1, 3, 320, 320}, "a:b": {7}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, wrong := range [][]string{
		{"images"}, {":1x2"}, {"images:"}, {"images:1,2"}, {"images:1x0"}, {"images:-1"},
		{"a:1", "a:2"},
	} {
		if _, err := ParseShapes(wrong); err == nil || !strings.Contains(err.Error(), "shape: ") {
			t.Errorf("%q: got %v", wrong, err)
		}
	}
}
