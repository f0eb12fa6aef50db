package npz

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

const limit = 1 << 20

func words(values ...string) (data []byte) {
	for _, v := range values {
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(v))), v...)
	}
	return data
}

// arrays are those of testdata.
var arrays = []tensor.Tensor{
	{Name: "half", DataType: tensor.FP16, Shape: []int64{2, 2},
		Data: []byte{0, 0x3c, 0, 0xc0, 0, 0x38, 0xff, 0x7b}},
	{Name: "brain", DataType: tensor.BF16, Shape: []int64{2},
		Data: []byte{0x80, 0x3f, 0x20, 0xc0}},
	{Name: "single", DataType: tensor.FP32, Shape: []int64{2, 1, 1},
		Data: []byte{0, 0, 0xc0, 0x3f, 0, 0, 0, 0x40}},
	{Name: "double", DataType: tensor.FP64, Shape: []int64{2},
		Data: []byte("\x9a\x99\x99\x99\x99\x99\xb9\x3f\x00\x00\x00\x00\x00\x00\x00\x40")},
	{Name: "ids", DataType: tensor.Int64, Shape: []int64{2, 3}, Data: []byte(
		"\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00" +
			"\x03\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00" +
			"\x05\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00")},
	{Name: "small", DataType: tensor.Int8, Shape: []int64{2}, Data: []byte{0xff, 2}},
	{Name: "flags", DataType: tensor.Bool, Shape: []int64{2}, Data: []byte{1, 0}},
	{Name: "text", DataType: tensor.Bytes, Shape: []int64{2}, Data: words("é", "longer")},
	{Name: "bytes", DataType: tensor.Bytes, Shape: []int64{2}, Data: words("a", "")},
}

// read reads all arrays of a file.
func read(file []byte, limit int64) (all []tensor.Tensor, err error) {
	r, err := NewReader(bytes.NewReader(file), int64(len(file)), limit)
	if err != nil {
		return nil, err
	}
	for _, name := range r.Names() {
		array, err := r.Read(name)
		if err != nil {
			return nil, err
		}
		all = append(all, array)
	}
	return all, nil
}

// TestNumPy reads what NumPy has written.
func TestNumPy(t *testing.T) {
	for _, path := range []string{"testdata/types.npz", "testdata/packed.npz"} {
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(file, limit)
		if err != nil || !reflect.DeepEqual(got, arrays) {
			t.Errorf("%s: got %+v, %v, want %+v", path, got, err, arrays)
		}
	}
}

// What Write writes, Read reads; and each file in it is NumPy's, byte for byte.
func TestWrite(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, arrays); err != nil {
		t.Fatal(err)
	}
	if got, err := read(b.Bytes(), limit); err != nil || !reflect.DeepEqual(got, arrays) {
		t.Errorf("got %+v, %v, want %+v", got, err, arrays)
	}
	theirs, err := zip.OpenReader("testdata/types.npz")
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	ours, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range ours.File {
		if f.Name == "bytes.npy" {
			continue // which are characters in ours
		}
		got, want := content(t, ours, f.Name), content(t, &theirs.Reader, f.Name)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", f.Name, got, want)
		}
	}
	for want, data := range map[string][]byte{
		`array "x": element 1 is not UTF-8`:              words("a", "\xff"),
		`array "x": the last string is cut short`:        words("a", "b")[:9],
		`array "x": a string of 1048577 characters, exp`: words(strings.Repeat("a", 1<<20+1)),
	} {
		array := tensor.Tensor{Name: "x", DataType: tensor.Bytes, Shape: []int64{2}, Data: data}
		if err := Write(&b, []tensor.Tensor{array}); err == nil ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}

func content(t *testing.T, archive *zip.Reader, name string) []byte {
	t.Helper()
	f, err := archive.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// npy is a file with that header, as a version of the format.
func npy(version byte, header string, data string) []byte {
	b := append([]byte(magic), version, 0)
	if version == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(header)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(header)))
	}
	return append(append(b, header...), data...)
}

func head(descr, order, shape string) string {
	return fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }\n", descr, order,
		shape)
}

// file is an archive of files, whose names alternate with their contents.
func file(files ...string) []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		// Writing to memory does not fail.
		f, _ := w.CreateHeader(&zip.FileHeader{Name: files[i], Method: zip.Store})
		_, _ = f.Write([]byte(files[i+1]))
	}
	_ = w.Close()
	return b.Bytes()
}

func TestErrors(t *testing.T) {
	one := string(npy(1, head("<f4", "False", "1,"), "1234"))
	for _, tt := range []struct {
		file []byte
		want string
	}{
		{nil, `array "x": no npy file`},
		{[]byte(magic + "\x01"), "no npy file"},
		{npy(4, "", ""), "version 4"},
		{[]byte(one[:40]), "cut short"},
		{npy(2, "", "")[:10], "cut short"},
		{npy(2, strings.Repeat(" ", 70_000), ""), "the header has 70000 bytes, expected at most"},
		{npy(3, head("<f4", "False", "2,"), "1234"), "4 bytes, expected 2 elements of 4 bytes"},
		{npy(2, head("<f4", "False", "1,"), "12345"), "more bytes than 1 elements"},
		{npy(1, head("<f4", "False", ""), "1234"), "has no rows"},
		{npy(1, head("<f4", "False", "0, 3"), ""), "has no rows"},
		{npy(1, head("<f4", "True", "1, 1"), "1234"), "ascontiguousarray"},
		{npy(1, head(">f4", "False", "1,"), "1234"), "little-endian"},
		{npy(1, head("|O", "False", "1,"), "1234"), `"|O"`},
		{npy(1, head("<c8", "False", "1,"), "12345678"), `"<c8"`},
		{npy(1, head("<U0", "False", "1,"), ""), "1 to"},
		{npy(1, head("<U1", "False", "1,"), "\xff\xff\xff\xff"), "element 0: 0xffffffff"},
		{npy(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", ""),
			"plain array"},
		{npy(1, head("<f4", "False", "99999999999999999999,"), ""), "out of range"},
		{npy(1, head("<f4", "False", "4611686018427387904, 4"), ""), "too many elements"},
		{npy(1, head("<f4", "False", "4611686018427387904,"), ""), "more than 1048576 bytes"},
	} {
		_, err := read(file("x.npy", string(tt.file)), limit)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got error %v, want %q in it", tt.file, err, tt.want)
		}
	}
	for _, tt := range []struct {
		file  []byte
		limit int64
		want  string
	}{
		{[]byte("text"), limit, "no npz file"},
		{file("readme.txt", ""), limit, `it has a file "readme.txt", expected only arrays (.npy)`},
		{file("x.npy", one, "x.npy", one), limit, `it has array "x" twice`},
		{file("x.npy", one, "y.npy", one), 7, `array "y": more than 7 bytes in all arrays`},
	} {
		if _, err := read(tt.file, tt.limit); err == nil || err.Error() != tt.want &&
			!strings.HasPrefix(err.Error(), tt.want+": ") {
			t.Errorf("%q: got error %v, want %s", tt.file, err, tt.want)
		}
	}
	two := file("x.npy", one, "y.npy", one)
	if all, err := read(two, 8); err != nil || len(all) != 2 {
		t.Errorf("as many bytes as the limit: got %v, %v", all, err)
	}
	r, err := NewReader(bytes.NewReader(two), int64(len(two)), limit)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read("z"); err == nil || err.Error() != `it has no array "z", only x, y` {
		t.Errorf("no such array: got error %v", err)
	}
}

// FuzzRead: what is read from an archive of any file is a valid tensor, or an error; and what is
// read of numbers reads the same after it is written.
func FuzzRead(f *testing.F) {
	f.Add(npy(1, head("<f4", "False", "2, 1"), "12345678"))
	f.Add(npy(3, head("<U2", "False", "1,"), "a\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(npy(2, head("|S3", "True", "2,"), "a\x00\x00bcd"))
	f.Add(npy(1, head("|b1", "False", "2, 0"), ""))
	f.Fuzz(func(t *testing.T, content []byte) {
		all, err := read(file("x.npy", string(content)), limit)
		if err != nil {
			return
		}
		// A bool may have any byte here; the server refuses those that are neither 0 nor 1.
		if all[0].DataType != tensor.Bool {
			if err := (&oip.Request{Inputs: all}).Check(); err != nil {
				t.Errorf("%q: %v", content, err)
			}
		}
		if all[0].DataType == tensor.Bytes {
			return
		}
		var b bytes.Buffer
		if err := Write(&b, all); err != nil {
			t.Fatal(err)
		}
		if again, err := read(b.Bytes(), limit); err != nil || !reflect.DeepEqual(again, all) {
			t.Errorf("%q: got %+v, %v, want %+v", content, again, err, all)
		}
	})
}
