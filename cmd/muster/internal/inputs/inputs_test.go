package inputs

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

func words(values ...string) (data []byte) {
	for _, v := range values {
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(v))), v...)
	}
	return data
}

// TestNumPy reads what NumPy has written.
func TestNumPy(t *testing.T) {
	want := map[string]tensor.Tensor{}
	for _, one := range []tensor.Tensor{
		{Name: "half", DataType: tensor.FP16, Shape: []int64{2, 2},
			Data: []byte{0, 0x3c, 0, 0xc0, 0, 0x38, 0xff, 0x7b}},
		{Name: "brain", DataType: tensor.BF16, Shape: []int64{2}, Data: []byte{
			0x80, 0x3f, 0x20, 0xc0,
		}},
		{Name: "single", DataType: tensor.FP32, Shape: []int64{2, 1, 1},
			Data: []byte{0, 0, 0xc0, 0x3f, 0, 0, 0, 0x40}},
		{Name: "double", DataType: tensor.FP64, Shape: []int64{2},
			Data: []byte("\x9a\x99\x99\x99\x99\x99\xb9\x3f\x00\x00\x00\x00\x00\x00\x00\x40")},
		{Name: "ids", DataType: tensor.Int64, Shape: []int64{2, 3},
			Data: []byte("\x01\x00\x00\x00" +
				"\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00" +
				"\x04\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00" +
				"\x06\x00\x00\x00\x00\x00\x00\x00")},
		{Name: "small", DataType: tensor.Int8, Shape: []int64{2}, Data: []byte{0xff, 2}},
		{Name: "flags", DataType: tensor.Bool, Shape: []int64{2}, Data: []byte{1, 0}},
		{Name: "text", DataType: tensor.Bytes, Shape: []int64{2}, Data: words("é", "longer")},
		{Name: "bytes", DataType: tensor.Bytes, Shape: []int64{2}, Data: words("a", "")},
	} {
		want[one.Name] = one
	}
	for _, path := range []string{"testdata/types.npz", "testdata/packed.npz"} {
		given, err := Read(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(given.Rows) != len(want) {
			t.Errorf("%s: %d arrays, want %d", path, len(given.Rows), len(want))
		}
		for _, got := range given.Rows {
			if !reflect.DeepEqual(got, want[got.Name]) {
				t.Errorf("%s: got %+v, want %+v", path, got, want[got.Name])
			}
		}
		one, err := ReadOne(path, nil)
		if err != nil || len(one.Inputs) != len(want) {
			t.Errorf("%s as one query: %d inputs, %v", path, len(one.Inputs), err)
		}
	}
}

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
	if _, err := Read("nowhere.npz", nil); err == nil ||
		!strings.Contains(err.Error(), "nowhere.npz") {
		t.Errorf("no file: got %v", err)
	}
}

// npy is a file with that header, as a version of the format.
func npy(version byte, header string, data string) []byte {
	b := []byte{0x93, 'N', 'U', 'M', 'P', 'Y', version, 0}
	if version == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(header)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(header)))
	}
	return append(append(b, header...), data...)
}

func header(descr, order, shape string) string {
	return fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }\n", descr, order,
		shape)
}

func TestNPYErrors(t *testing.T) {
	for _, tt := range []struct {
		file []byte
		want string
	}{
		{nil, "no npy file"},
		{[]byte("\x93NUMPY\x01"), "no npy file"},
		{npy(4, "", ""), "version 4"},
		{npy(1, header("<f4", "False", "1,"), "1234")[:40], "cut short"},
		{npy(3, header("<f4", "False", "2,"), "1234"), "4 bytes, want 2 elements of 4 bytes"},
		{npy(2, header("<f4", "False", "1,"), "12345"), "5 bytes, want 1 elements"},
		{npy(1, header("<f4", "False", ""), "1234"), "has no rows"},
		{npy(1, header("<f4", "False", "0, 3"), ""), "has no rows"},
		{npy(1, header("<f4", "True", "1, 1"), "1234"), "ascontiguousarray"},
		{npy(1, header(">f4", "False", "1,"), "1234"), "little-endian"},
		{npy(1, header("|O", "False", "1,"), "1234"), `"|O"`},
		{npy(1, header("<c8", "False", "1,"), "12345678"), `"<c8"`},
		{npy(1, header("<U0", "False", "1,"), ""), "1 to"},
		{npy(1, header("<U1", "False", "1,"), "\xff\xff\xff\xff"), "element 0: 0xffffffff"},
		{npy(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", ""),
			"plain array"},
		{npy(1, header("<f4", "False", "99999999999999999999,"), ""), "out of range"},
		{npy(1, header("<f4", "False", "4611686018427387904, 4"), ""), "too many elements"},
		{npy(1, header("<f4", "False", "4611686018427387904,"), ""), "0 bytes, want"},
	} {
		if _, err := readNPY(tt.file); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got error %v, want %q in it", tt.file, err, tt.want)
		}
	}
	dir := t.TempDir()
	for name, want := range map[string]string{
		"a.npz": "no npz file", "b.npz": "only arrays", "c.npz": "no arrays",
	} {
		var b bytes.Buffer
		switch name {
		case "a.npz":
			b.WriteString("text")
		default:
			w := zip.NewWriter(&b)
			if name == "b.npz" {
				if _, err := w.Create("readme.txt"); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path, nil); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: got error %v, want %q in it", name, err, want)
		}
	}
}

// FuzzNPY: what is read is a valid tensor, or an error.
func FuzzNPY(f *testing.F) {
	f.Add(npy(1, header("<f4", "False", "2, 1"), "12345678"))
	f.Add(npy(3, header("<U2", "False", "1,"), "a\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(npy(2, header("|S3", "True", "2,"), "a\x00\x00bcd"))
	f.Add(npy(1, header("|b1", "False", "2, 0"), ""))
	f.Fuzz(func(t *testing.T, file []byte) {
		array, err := readNPY(slices.Clone(file))
		if err != nil || array.DataType == tensor.Bool {
			return // a bool may have any byte; the server refuses it
		}
		array.Name = "x"
		if err := (&oip.Request{Inputs: []tensor.Tensor{array}}).Check(); err != nil {
			t.Errorf("%q: %v", file, err)
		}
	})
}
