package oip

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
)

// knownTypes ends the errors of unknown datatypes.
const knownTypes = ", expected one of [BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 " +
	"FP16 BF16 FP32 FP64 BYTES]"

// floatForms are what JSON may have for a float, in errors.
const floatForms = `a number, null, "NaN", "Infinity" or "-Infinity"`

// post is a request with a body, of which the first header bytes are JSON;
// header < 0: all of it, and no header says so.
func post(body string, header int) *http.Request {
	r := httptest.NewRequest("POST", "/v2/models/m/infer", strings.NewReader(body))
	if header >= 0 {
		r.Header.Set(headerLength, strconv.Itoa(header))
	}
	return r
}

const testLimit = 1 << 20

func ptr[T any](v T) *T { return &v }

func TestDecodeJSON(t *testing.T) {
	req, err := DecodeRequest(post(`
	{"unknown": [1, {"a": null, "b": "\"]"}], "id": "q\u00e9\ud83d\ude00\n",
	 "parameters": {"timeout": 2500, "binary_data_output": true, "priority": -3, "big": 18446744073709551615,
	   "f": 1.5, "s": "x", "b": false},
	 "inputs": [
	   {"name": "ids", "shape": [2, 3], "datatype": "INT64", "data": [[1, -2, 3], [4, 5, 9223372036854775807]]},
	   {"data": [0.1, -2e-3, 3E2, 0], "name": "flat", "datatype": "FP32", "shape": [2, 2]}
	 ],
	 "outputs": [{"name": "a"}, {"name": "b", "parameters": {"binary_data": false}}]} `, -1), testLimit, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer req.Release()
	want := &Request{
		ID: "qé😀\n", Timeout: 2500 * time.Microsecond, BinaryOutputs: true, JSON: true,
		Parameters: map[string]any{
			"priority": int64(-3), "big": uint64(math.MaxUint64), "f": 1.5, "s": "x", "b": false,
		},
		Inputs: []tensor.Tensor{
			must(tensor.Of("ids", []int64{1, -2, 3, 4, 5, math.MaxInt64}, 2, 3)),
			must(tensor.Of("flat", []float32{0.1, -0.002, 300, 0}, 2, 2)),
		},
		Outputs: []RequestedOutput{{Name: "a"}, {Name: "b", Binary: ptr(false)}},
	}
	if diff := cmp.Diff(want, req, cmp.AllowUnexported(Request{}),
		cmp.Comparer(func(a, b *hold) bool { return true })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestDecodeJSONTypes(t *testing.T) {
	for _, tt := range []struct {
		datatype, shape, data string
		want                  []byte
	}{
		{"BOOL", "[3]", "[true,false , true]", []byte{1, 0, 1}},
		{"INT8", "[3]", "[-128,127,-1]", []byte{0x80, 0x7f, 0xff}},
		{"INT16", "[3]", "[-2,300,-0]", []byte{0xfe, 0xff, 0x2c, 0x01, 0, 0}},
		{"INT32", "[1]", "[-2147483648]", []byte{0, 0, 0, 0x80}},
		{"INT64", "[1]", "[-9223372036854775808]", []byte{0, 0, 0, 0, 0, 0, 0, 0x80}},
		{"UINT8", "[2]", "[0,255]", []byte{0, 255}},
		{"UINT16", "[1]", "[65535]", []byte{255, 255}},
		{"UINT32", "[1]", "[4294967295]", []byte{255, 255, 255, 255}},
		{"UINT64", "[1]", "[18446744073709551615]", bytes.Repeat([]byte{255}, 8)},
		{"FP64", "[1,2]", "[[1.5,-0.0]]",
			[]byte("\x00\x00\x00\x00\x00\x00\xf8\x3f\x00\x00\x00\x00\x00\x00\x00\x80")},
		{"FP32", "[2,1,2]", "[[[1,2]],[[3,4]]]",
			[]byte("\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40")},
		{"FP16", "[4]", "[1,-2.0,65504,1e-9]", []byte{0, 0x3c, 0, 0xc0, 0xff, 0x7b, 0, 0}},
		{"BF16", "[2]", "[1,-2.5]", []byte{0x80, 0x3f, 0x20, 0xc0}},
		{"BYTES", "[3]", `["a", "", "\u00e9\\"]`,
			[]byte("\x01\x00\x00\x00a\x00\x00\x00\x00\x03\x00\x00\x00\xc3\xa9\\")},
		{"FP32", "[0,3]", "[]", nil},
		{"FP32", "[2,0]", "[[],[]]", nil},
		{"FP32", "[2,0]", "[]", nil},
		{"INT8", "[]", "[5]", []byte{5}},
	} {
		body := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":%q,"shape":%s,"data":%s}]}`,
			tt.datatype, tt.shape, tt.data)
		req, err := DecodeRequest(post(body, -1), testLimit, nil)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if got := req.Inputs[0].Data; !bytes.Equal(got, tt.want) {
			t.Errorf("%s: got % x, want % x", body, got, tt.want)
		}
		req.Release()
	}
}

func TestDecodeBinary(t *testing.T) {
	head := `{"inputs":[` +
		`{"name":"a","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}},` +
		`{"name":"j","datatype":"INT32","shape":[1,1],"data":[7]},` +
		`{"name":"b","datatype":"INT64","shape":[1],"parameters":{"binary_data_size":8}},` +
		`{"name":"t","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":9}}]}  `
	body := head + "\x00\x00\x80\x3f\x00\x00\x00\x40" + "\xff\xff\xff\xff\xff\xff\xff\xff" +
		"\x00\x00\x00\x00\x01\x00\x00\x00x"
	for _, known := range []bool{true, false} {
		r := post(body, len(head))
		if !known {
			r.ContentLength = -1
		}
		r.Body = io.NopCloser(iotest.OneByteReader(r.Body))
		req, err := DecodeRequest(r, testLimit, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := []tensor.Tensor{
			must(tensor.Of("a", []float32{1, 2}, 1, 2)),
			must(tensor.Of("j", []int32{7}, 1, 1)),
			must(tensor.Of("b", []int64{-1}, 1)),
			{Name: "t", DataType: tensor.Bytes, Shape: []int64{2},
				Data: []byte("\x00\x00\x00\x00\x01\x00\x00\x00x")},
		}
		if diff := cmp.Diff(want, req.Inputs); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if _, err := tensor.Values[int64](req.Inputs[2]); err != nil {
			t.Error(err)
		}
		req.Release()
	}
}

func TestDecodeRequestErrors(t *testing.T) {
	in := func(fields string) string { return `{"inputs":[{"name":"x",` + fields + `}]}` }
	data := func(datatype, shape, data string) string {
		return in(fmt.Sprintf(`"datatype":%q,"shape":%s,"data":%s`, datatype, shape, data))
	}
	const bin8 = `{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]}`
	for _, tt := range []struct {
		name string
		body string
		// Inference-Header-Content-Length; "": none, "json": the length of body up to '|'
		header string
		want   string
	}{
		{"empty", "", "", `decode JSON: byte 0: expected an object, found the end of the text`},
		{"not JSON", "hello", "", `decode JSON: byte 0: expected an object, found 'h'`},
		{"cut", `{"inputs":[{"name":"x"`, "",
			`decode JSON: input "x": byte 22: expected ',' or '}', found the end of the text`},
		{"trailing", `{"inputs":[]}x`, "",
			`decode JSON: byte 13: expected the end of the text, found 'x'`},
		{"no inputs", `{}`, "", `decode JSON: no inputs`},
		{"key twice", `{"inputs":[],"inputs":[]}`, "",
			`decode JSON: byte 13: key "inputs" is given twice`},
		{"many keys", `{"inputs":[],"parameters":{` + manyKeys(maxKeys+1) + `}}`, "",
			`decode JSON: byte 1056: an object of more than 128 keys`},
		{"string not closed", `{"id":"abc`, "",
			`decode JSON: byte 10: expected '"', found the end of the text`},
		{"escape not closed", `{"id":"abc\`, "",
			`decode JSON: byte 11: expected '"', found the end of the text`},
		{"control character", "{\"id\":\"a\nb\"}", "",
			`decode JSON: byte 8: control character '\n' in a string`},
		{"unknown escape", `{"id":"\x41"}`, "", `decode JSON: byte 7: unknown escape \x`},
		{"half a surrogate pair", `{"id":"\ud83d"}`, "",
			`decode JSON: byte 7: a \u escape that is no character`},
		{"bad unicode", `{"id":"\u12g4"}`, "",
			`decode JSON: byte 7: a \u escape that is no character`},
		{"invalid UTF-8", "{\"id\":\"\xff\"}", "",
			`decode JSON: byte 7: a string that is not valid UTF-8`},
		{"name is a number", `{"inputs":[{"name":1}]}`, "",
			`decode JSON: byte 19: expected a string, found '1'`},
		{"null inputs", `{"inputs":null}`, "",
			`decode JSON: byte 10: expected an array, found 'n'`},
		{"deep", `{"x":` + strings.Repeat("[", 100_000), "",
			`decode JSON: byte 78: nested more than 72 deep`},
		{"deep objects", `{"x":` + strings.Repeat(`{"a":`, 100_000), "",
			`decode JSON: byte 370: nested more than 72 deep`},
		{"deep data", data("FP32", "[1]", strings.Repeat("[", 100_000)), "",
			`decode JSON: input "x": byte 133: nested more than 72 deep`},
		{"no shape", in(`"datatype":"FP32","data":[1]`), "", `decode JSON: input "x" has no shape`},
		{"no name", `{"inputs":[{"datatype":"FP32","shape":[1],"data":[1]}]}`, "",
			`input 0 has no name`},
		{"name twice",
			`{"inputs":[{"name":"x","datatype":"FP32","shape":[0],"data":[]},` +
				`{"name":"x","datatype":"FP32","shape":[0],"data":[]}]}`,
			"", `input "x" is given twice`},
		{"no datatype", in(`"shape":[1],"data":[1]`), "",
			`input "x": unknown datatype ""` + knownTypes},
		{"unknown datatype", data("FLOAT", "[1]", "[1]"), "",
			`input "x": unknown datatype "FLOAT"` + knownTypes},
		{"negative shape before the name", `{"inputs":[{"shape":[-1],"name":"x"}]}`, "",
			`decode JSON: input "x": shape: byte 21: -1 is out of range, expected 0 to 9223372036854775807`},
		{"unsupported before the name",
			`{"inputs":[{"parameters":{"classification":1},"shape":[1],"name":"x"}]}`, "",
			`decode JSON: input "x": byte 43: parameter classification is not supported`},
		{"negative shape, name is a number", `{"inputs":[{"shape":[-1],"name":1}]}`, "",
			`decode JSON: shape: byte 21: -1 is out of range, expected 0 to 9223372036854775807`},
		{"negative shape", data("FP32", "[-1]", "[1]"), "",
			`decode JSON: input "x": shape: byte 50: -1 is out of range, expected 0 to 9223372036854775807`},
		{"fractional shape", data("FP32", "[1.5]", "[1]"), "",
			`decode JSON: input "x": shape: byte 50: 1.5 is no whole number`},
		{"huge shape", data("FP32", "[99999999999999999999]", "[1]"), "",
			`decode JSON: input "x": shape: byte 50: 99999999999999999999 is out of range`},
		{"absurd shape", data("FP32", "[4294967296,4294967296]", "[1]"), "",
			`input "x": shape [4294967296 4294967296] has too many elements`},
		{"large shape", data("FP32", "[1000000000]", "[1]"), "",
			`input "x": data: 1 elements, expected 1000000000 for shape [1000000000]`},
		{"no data", in(`"datatype":"FP32","shape":[1]`), "",
			`input "x": neither data nor binary_data_size`},
		{"data is a number", data("FP32", "[1]", "1"), "",
			`input "x": data: byte 60: expected an array, found '1'`},
		{"too few", data("FP32", "[3]", "[1,2]"), "",
			`input "x": data: byte 64: an array of 2 at depth 1, expected 3 for shape [3]`},
		{"too few of several", data("FP32", "[2,2]", "[1,2,3]"), "",
			`input "x": data: byte 69: 3 elements, expected 4 for shape [2 2]`},
		{"too many", data("FP32", "[2]", "[1,2,3]"), "",
			`input "x": data: byte 65: more than the 2 elements of shape [2]`},
		{"short row", data("FP32", "[2,2]", "[[1],[2,3]]"), "",
			`input "x": data: byte 65: an array of 1 at depth 2, expected 2 for shape [2 2]`},
		{"few rows", data("FP32", "[2,2]", "[[1,2]]"), "",
			`input "x": data: byte 68: an array of 1 at depth 1, expected 2 for shape [2 2]`},
		{"mixed nesting", data("FP32", "[2,2]", "[[1,2],3,4]"), "",
			`input "x": data: byte 69: expected an array, as shape [2 2] and the elements before say, found '3'`},
		{"empty row among elements", data("FP32", "[1,1]", "[1,[]]"), "",
			`input "x": data: byte 66: an array of 0 at depth 2, expected 1 for shape [1 1]`},
		{"nested too deep", data("FP32", "[2]", "[[1],[2]]"), "",
			`input "x": data: byte 61: data is nested deeper than the 1 dimensions of shape [2]`},
		{"nested halfway", data("FP32", "[1,1,1]", "[[1]]"), "",
			`input "x": data: byte 66: expected an array, as shape [1 1 1] and the elements before say, found '1'`},
		{"scalar shape without data", data("FP32", "[]", "[ ]"), "",
			`input "x": data: byte 62: 0 elements, expected 1 for shape []`},
		{"trailing comma", data("FP32", "[2]", "[1,2,]"), "",
			`decode JSON: input "x": byte 65: expected a value, found ']'`},
		{"string for a number", data("FP32", "[1]", `["1"]`), "",
			`input "x": data: element 0: byte 61: expected ` + floatForms + `, found '"'`},
		{"null for an integer", data("INT32", "[1]", `[null]`), "",
			`input "x": data: element 0: byte 62: expected a number, found 'n'`},
		{"null cut short", data("FP32", "[1]", `[nul]`), "",
			`decode JSON: input "x": byte 61: expected null, found 'n'`},
		{"NaN for an integer", data("INT64", "[1]", `["NaN"]`), "",
			`input "x": data: element 0: byte 62: expected a number, found '"'`},
		{"infinity in short", data("FP32", "[1]", `["Inf"]`), "",
			`input "x": data: element 0: byte 61: expected ` + floatForms + `, found '"'`},
		{"more than NaN", data("FP64", "[1]", `["NaN "]`), "",
			`input "x": data: element 0: byte 61: expected ` + floatForms + `, found '"'`},
		{"minus NaN", data("FP32", "[1]", `[-NaN]`), "",
			`decode JSON: input "x": byte 62: expected a value, found 'N'`},
		{"leading zero", data("INT64", "[1]", `[01]`), "",
			`decode JSON: input "x": byte 63: expected ',' or ']', found '1'`},
		{"hexadecimal", data("INT64", "[1]", `[0x1]`), "",
			`decode JSON: input "x": byte 63: expected ',' or ']', found 'x'`},
		{"plus", data("INT64", "[1]", `[+1]`), "",
			`decode JSON: input "x": byte 62: expected a value, found '+'`},
		{"fraction for an integer", data("INT64", "[2]", `[1,1.0]`), "",
			`input "x": data: element 1: byte 64: 1.0 is no whole number`},
		{"out of range", data("INT8", "[2]", `[-128,128]`), "",
			`input "x": data: element 1: byte 66: 128 is out of range for INT8`},
		{"negative unsigned", data("UINT32", "[1]", `[-1]`), "",
			`input "x": data: element 0: byte 63: -1 is out of range for UINT32`},
		{"beyond int64", data("INT64", "[1]", `[9223372036854775808]`), "",
			`input "x": data: element 0: byte 62: 9223372036854775808 is out of range for INT64`},
		{"beyond uint64", data("UINT64", "[1]", `[18446744073709551616]`), "",
			`input "x": data: element 0: byte 63: 18446744073709551616 is out of range`},
		{"beyond float32", data("FP32", "[1]", `[1e39]`), "",
			`input "x": data: element 0: byte 61: 1e39 is out of range for FP32`},
		{"number for a bool", data("BOOL", "[1]", `[1]`), "",
			`input "x": data: element 0: byte 61: expected true or false, found '1'`},
		{"half float", data("FP16", "[1]", `[65520]`), "",
			`input "x": data: element 0: byte 61: 65520 is out of range for FP16`},
		{"fewer than the bytes could be", data("INT64", "[2,4]", `[1,2,3]`), "",
			`input "x": data: 3 elements, expected 8 for shape [2 4]`},
		{"few and nested", data("INT64", "[2,40]", `[[1,2],[ -3.5e1 ]]`), "",
			`input "x": data: 3 elements, expected 80 for shape [2 40]`},
		{"few strings", data("BYTES", "[20]", `["[\"1,2" , ""]`), "",
			`input "x": data: 2 elements, expected 20 for shape [20]`},
		{"negative timeout", `{"parameters":{"timeout":-1},"inputs":[]}`, "",
			`parameter timeout is -1 (int64), expected a whole number of microseconds, not negative`},
		{"timeout of another type", `{"parameters":{"timeout":"1s"},"inputs":[]}`, "",
			`parameter timeout is 1s (string), expected a whole number of microseconds, not negative`},
		{"parameter is a list", `{"parameters":{"p":[]},"inputs":[]}`, "",
			`decode JSON: byte 19: expected a string, number or bool, found '['`},
		{"shared memory", in(`"parameters":{"shared_memory_region":"r"}`), "",
			`decode JSON: input "x": byte 60: parameter shared_memory_region is not supported`},
		{"classification",
			`{"inputs":[],"outputs":[{"name":"y","parameters":{"classification":3}}]}`, "",
			`decode JSON: byte 67: parameter classification is not supported`},

		{"binary without the header", bin8, "",
			`input "x": binary_data_size without the header Inference-Header-Content-Length`},
		{"header is no number", bin8, "1x",
			`Inference-Header-Content-Length is "1x", expected a number of bytes`},
		{"header is negative", bin8, "-1",
			`Inference-Header-Content-Length is "-1", expected a number of bytes`},
		{"header is absurd", bin8, "99999999999999999999999999",
			`Inference-Header-Content-Length is "99999999999999999999999999", expected a number of bytes`},
		{"header beyond the body", bin8, "9223372036854775807",
			`Inference-Header-Content-Length is 9223372036854775807, more than the 91 bytes of the body`},
		{"header too short", bin8 + "|12345678", "10",
			`decode JSON: byte 10: expected an array, found the end of the text`},
		{"binary cut", bin8 + "|1234567", "json",
			`the body has 98 bytes, expected 99: 91 of JSON and 8 of binary data`},
		{"binary too long", bin8 + "|123456789", "json",
			`the body has 100 bytes, expected 99: 91 of JSON and 8 of binary data`},
		{"binary of another size",
			in(`"datatype":"FP32","shape":[3],"parameters":{"binary_data_size":8}`) + "|12345678",
			"json", `input "x": binary_data_size is 8, expected 12 for FP32 [3]`},
		{"negative binary size",
			in(`"datatype":"FP32","shape":[3],"parameters":{"binary_data_size":-8}`) + "|12345678",
			"json",
			`decode JSON: input "x": byte 86: -8 is out of range, expected 0 to 9223372036854775807`},
		{"data and binary",
			in(`"datatype":"FP32","shape":[2],"data":[1,2],"parameters":{"binary_data_size":8}`) +
				"|12345678", "json",
			`input "x": both data and binary_data_size; one or the other is allowed`},
		{"binary bool",
			in(`"datatype":"BOOL","shape":[2],"parameters":{"binary_data_size":2}`) + "|\x01\x07",
			"json", `input "x": BOOL element 1 is 7, expected 0 or 1`},
		{"binary bytes",
			in(`"datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":6}`) +
				"|\x03\x00\x00\x00ab", "json",
			`input "x": BYTES element 0 says it has 3 bytes, 2 are left`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			header := -1
			body := tt.body
			if tt.header == "json" {
				header = strings.IndexByte(body, '|')
				body = body[:header] + body[header+1:]
			}
			r := post(body, header)
			if tt.header != "" && tt.header != "json" {
				r.Header.Set(headerLength, tt.header)
			}
			_, err := DecodeRequest(r, testLimit, nil)
			if err == nil || err.Error() != tt.want || !errors.Is(err, ErrInvalid) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func manyKeys(n int) string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"%03d":1`, i)
	}
	return strings.Join(keys, ",")
}

// TestDecodeHalfClosed sends less than the headers promise.
func TestDecodeHalfClosed(t *testing.T) {
	const head = `{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]}`
	for _, tt := range []struct {
		body   string
		header int
		length int64
		want   string
	}{
		{head[:20], -1, 91, `body ends after 20 bytes, expected more`},
		{head[:20], 91, 99, `body ends after 20 bytes, expected more`},
		{head + "1234", 91, 99,
			`input "x": binary data of 8 bytes: body ends after 95 bytes, expected more`},
		{head + "1234", 91, -1,
			`input "x": binary data of 8 bytes: body ends after 95 bytes, expected more`},
		{head + "123456789", 91, -1,
			`the body has more than the 99 bytes that its parts add up to`},
		{head, 500_000, -1, `body ends after 91 bytes, expected more`},
	} {
		r := post(tt.body, tt.header)
		r.ContentLength = tt.length
		_, err := DecodeRequest(r, testLimit, nil)
		if err == nil || err.Error() != tt.want || !errors.Is(err, ErrInvalid) {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
}

func TestDecodeLimit(t *testing.T) {
	const head = `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1000],"parameters":{"binary_data_size":1000}}]}`
	for _, length := range []int64{-1, int64(len(head) + 1000)} {
		for _, limit := range []int64{10, int64(len(head)), int64(len(head) + 999)} {
			r := post(head+strings.Repeat("x", 1000), len(head))
			r.ContentLength = length
			if _, err := DecodeRequest(r, limit, nil); !errors.Is(err, ErrTooLarge) {
				t.Errorf("length %d, limit %d: got %v, want ErrTooLarge", length, limit, err)
			}
		}
		r := post(head+strings.Repeat("x", 1000), len(head))
		r.ContentLength = length
		req, err := DecodeRequest(r, int64(len(head)+1000), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Release()
	}
	// JSON alone, of unknown length.
	r := post(`{"inputs":[]}`+strings.Repeat(" ", 100), -1)
	r.ContentLength = -1
	if _, err := DecodeRequest(r, 50, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	// The caller's own limit on the body.
	r = post(`{"inputs":[]}`+strings.Repeat(" ", 100), -1)
	r.ContentLength = -1
	r.Body = http.MaxBytesReader(nil, r.Body, 50)
	if _, err := DecodeRequest(r, testLimit, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	r = post("{}", -1)
	r.Body = io.NopCloser(iotest.ErrReader(io.ErrClosedPipe))
	if _, err := DecodeRequest(r, testLimit, nil); !errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrClosedPipe", err)
	}
}

func TestEncodeResponse(t *testing.T) {
	resp := &Response{Model: "m", Version: "3", ID: `q"1`,
		Parameters: map[string]any{"late": true, "n": int64(2)}, Outputs: []tensor.Tensor{
			must(tensor.Of("f", []float32{0.1, -1e-9, 3e20, 1e22}, 2, 2)),
			must(tensor.Of("d", []float64{0.1, math.MaxFloat64}, 2)),
			{Name: "h", DataType: tensor.FP16, Shape: []int64{2}, Data: []byte{0x66, 0x2e, 0,
				0xc0}},
			must(tensor.Of("i", []int64{math.MinInt64, 5}, 2)),
			must(tensor.Of("u", []uint64{math.MaxUint64}, 1)),
			must(tensor.Of("i8", []int8{-1}, 1)),
			must(tensor.Of("b", []bool{true, false}, 2)),
			{Name: "s", DataType: tensor.Bytes, Shape: []int64{2},
				Data: []byte("\x04\x00\x00\x00\"\n\xc3\xa9\x00\x00\x00\x00")},
		}}
	for _, tt := range []struct {
		name string
		req  Request
		want string
		tail string
	}{
		{"json", Request{},
			`{"model_name":"m","model_version":"3","id":"q\"1","parameters":{"late":true,"n":2},"outputs":[` +
				`{"name":"f","datatype":"FP32","shape":[2,2],"data":[0.1,-1e-09,3e+20,1e+22]},` +
				`{"name":"d","datatype":"FP64","shape":[2],"data":[0.1,1.7976931348623157e+308]},` +
				`{"name":"h","datatype":"FP16","shape":[2],"data":[0.099975586,-2]},` +
				`{"name":"i","datatype":"INT64","shape":[2],"data":[-9223372036854775808,5]},` +
				`{"name":"u","datatype":"UINT64","shape":[1],"data":[18446744073709551615]},` +
				`{"name":"i8","datatype":"INT8","shape":[1],"data":[-1]},` +
				`{"name":"b","datatype":"BOOL","shape":[2],"data":[true,false]},` +
				`{"name":"s","datatype":"BYTES","shape":[2],"data":["\"\u000aé",""]}]}`, ""},
		{"binary", Request{
			BinaryOutputs: true, Outputs: []RequestedOutput{{Name: "f", Binary: ptr(false)}},
		},
			`{"model_name":"m","model_version":"3","id":"q\"1","parameters":{"late":true,"n":2},"outputs":[` +
				`{"name":"f","datatype":"FP32","shape":[2,2],"data":[0.1,-1e-09,3e+20,1e+22]},` +
				`{"name":"d","datatype":"FP64","shape":[2],"parameters":{"binary_data_size":16}},` +
				`{"name":"h","datatype":"FP16","shape":[2],"parameters":{"binary_data_size":4}},` +
				`{"name":"i","datatype":"INT64","shape":[2],"parameters":{"binary_data_size":16}},` +
				`{"name":"u","datatype":"UINT64","shape":[1],"parameters":{"binary_data_size":8}},` +
				`{"name":"i8","datatype":"INT8","shape":[1],"parameters":{"binary_data_size":1}},` +
				`{"name":"b","datatype":"BOOL","shape":[2],"parameters":{"binary_data_size":2}},` +
				`{"name":"s","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":12}}]}`,
			"\x9a\x99\x99\x99\x99\x99\xb9\x3f\xff\xff\xff\xff\xff\xff\xef\x7f" +
				"\x66\x2e\x00\xc0" +
				"\x00\x00\x00\x00\x00\x00\x00\x80\x05\x00\x00\x00\x00\x00\x00\x00" +
				"\xff\xff\xff\xff\xff\xff\xff\xff" + "\xff" + "\x01\x00" +
				"\x04\x00\x00\x00\"\n\xc3\xa9\x00\x00\x00\x00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			if err := EncodeResponse(w, &tt.req, resp, nil); err != nil {
				t.Fatal(err)
			}
			if got := w.Body.String(); got != tt.want+tt.tail {
				t.Errorf("got  %q\nwant %q", got, tt.want+tt.tail)
			}
			if !json.Valid([]byte(tt.want)) {
				t.Error("not JSON")
			}
			wantType, wantHeader := "application/json", ""
			if tt.tail != "" {
				wantType, wantHeader = "application/octet-stream", strconv.Itoa(len(tt.want))
			}
			h := w.Header()
			if h.Get("Content-Type") != wantType || h.Get(headerLength) != wantHeader ||
				h.Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
				t.Errorf("headers are %v", h)
			}
		})
	}
}

func TestEncodeResponseErrors(t *testing.T) {
	for _, tt := range []struct {
		out  tensor.Tensor
		want string
	}{
		{tensor.Tensor{
			Name: "y", DataType: tensor.Bytes, Shape: []int64{2},
			Data: []byte("\x01\x00\x00\x00a\x01\x00\x00\x00\xff"),
		},
			`output "y": element 1 is not valid UTF-8, which JSON cannot hold; ask for it as binary ` +
				`data ("binary_data": true), or by gRPC`},
		{tensor.Tensor{Name: "y", DataType: "FP8", Shape: []int64{1}, Data: []byte{0}},
			`output "y": unknown datatype "FP8"` + knownTypes},
	} {
		resp := &Response{Outputs: []tensor.Tensor{tt.out}}
		w := httptest.NewRecorder()
		err := EncodeResponse(w, &Request{}, resp, nil)
		want := "the answer cannot be encoded: " + tt.want
		if err == nil || err.Error() != want || !errors.Is(err, ErrUnencodable) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		// what can be known before is known before
		if err := (&Request{JSON: true}).CheckAnswer(resp.Outputs); tt.out.DataType == tensor.Bytes &&
			(err == nil || err.Error() != want) {
			t.Errorf("the check: got  %v\nwant %s", err, want)
		}
		for _, req := range []*Request{{}, {JSON: true, BinaryOutputs: true}} {
			if err := req.CheckAnswer(resp.Outputs); err != nil {
				t.Errorf("the check of %+v: %v", req, err)
			}
		}
		if w.Body.Len() > 0 || len(w.Header()) > 0 {
			t.Error("something was written")
		}
		if err := EncodeResponse(w, &Request{BinaryOutputs: true}, resp, nil); err != nil {
			t.Errorf("in binary: %v", err)
		}
	}
}

// TestNonFiniteJSON: NaN and infinity are strings in answers, which any reader of JSON takes, and
// in queries strings or the words that Python writes; they are what they were.
func TestNonFiniteJSON(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	answers := []tensor.Tensor{
		must(tensor.Of("FP64", []float64{1.5, nan, inf, -inf}, 4)),
		must(tensor.Of("FP32", []float32{1.5, float32(nan), float32(inf), float32(-inf)}, 4)),
	}
	for _, d := range []tensor.DataType{tensor.FP16, tensor.BF16} {
		half := tensor.Tensor{Name: string(d), DataType: d, Shape: []int64{4}}
		for _, v := range []float64{1.5, nan, inf, -inf} {
			element, _ := tensor.HalfOf(d, v)
			half.Data = binary.LittleEndian.AppendUint16(half.Data, element)
		}
		answers = append(answers, half)
	}
	w := httptest.NewRecorder()
	if err := EncodeResponse(w, &Request{}, &Response{
		Outputs: answers, Parameters: map[string]any{"p": nan},
	}, nil); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Parameters map[string]any
		Outputs    []struct{ Data []any }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for i, out := range got.Outputs {
		if want := []any{1.5, "NaN", "Infinity", "-Infinity"}; !slices.Equal(out.Data, want) {
			t.Errorf("%s: got %v, want %v", answers[i].Name, out.Data, want)
		}
	}
	if got.Parameters["p"] != "NaN" || len(got.Outputs) != 4 {
		t.Errorf("got %s", w.Body)
	}
	for _, tt := range []string{
		`[1.5,"NaN","Infinity","-Infinity"]`, `[1.5,NaN,Infinity,-Infinity]`,
		"[ 1.5 , \"NaN\"\n,Infinity , -Infinity ]", `[1.5, null, "Infinity", -Infinity]`,
	} {
		for _, want := range answers {
			text := fmt.Sprintf(`{"inputs":[{"name":%q,"datatype":%q,"shape":[4],"data":%s}]}`,
				want.Name, want.DataType, tt)
			req, err := DecodeRequest(httptest.NewRequest("POST", "/", strings.NewReader(text)),
				1<<20,
				nil)
			if err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			if diff := cmp.Diff([]tensor.Tensor{want}, req.Inputs); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", text, diff)
			}
			req.Release()
		}
	}
}

// TestEncodeParameterErrors: an answer whose parameters JSON cannot hold is an error before
// anything is written, which tells it from an error of writing: that has no answer.
func TestEncodeParameterErrors(t *testing.T) {
	for want, value := range map[string]any{
		`the answer cannot be encoded: parameter "p": it is a int, expected bool, int64, uint64, float64 or string`: 1,
	} {
		resp := &Response{Parameters: map[string]any{"p": value}}
		w := httptest.NewRecorder()
		if err := EncodeResponse(w, &Request{}, resp, nil); err == nil || err.Error() != want ||
			!errors.Is(err, ErrUnencodable) || w.Body.Len() > 0 {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestJSONMessages(t *testing.T) {
	for _, tt := range []struct {
		got  []byte
		want string
	}{
		{JSON(&inference.ServerMetadataResponse{Name: "muster", Version: "1"}),
			`{"name":"muster","version":"1","extensions":[]}`},
		{JSON(&inference.ModelMetadataResponse{Name: "m", Versions: []string{"1"},
			Platform: "onnxruntime_onnx",
			Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
				{Name: "x", Datatype: "FP32", Shape: []int64{-1, 4}},
			}}),
			`{"name":"m","versions":["1"],"platform":"onnxruntime_onnx",` +
				`"inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],"outputs":[],"properties":{}}`},
		{JSON(&inference.RepositoryIndexResponse{
			Models: []*inference.RepositoryIndexResponse_ModelIndex{{Name: "m", State: "READY"}},
		}),
			`[{"name":"m","version":"","state":"READY","reason":""}]`},
		{JSON(&inference.RepositoryIndexResponse{}), `[]`},
		{JSON(&inference.ModelStatistics{Name: "m", LastInference: math.MaxUint64,
			InferenceStats: &inference.InferStatistics{
				Success: &inference.StatisticDuration{Count: 1, Ns: 5},
			},
			ResponseStats: map[string]*inference.InferResponseStatistics{"0": nil}})[:60],
			`{"name":"m","version":"","last_inference":184467440737095516`},
		{ErrorJSON("a \"b\""), `{"error":"a \"b\""}`},
		{JSON(&inference.ModelReadyResponse{Ready: true}), `{"ready":true}`},
	} {
		if string(tt.got) != tt.want {
			t.Errorf("got  %s\nwant %s", tt.got, tt.want)
		}
	}
	var v any
	stats := JSON(&inference.ModelStatisticsResponse{
		ModelStats: []*inference.ModelStatistics{
			{ResponseStats: map[string]*inference.InferResponseStatistics{"0": {}, "1": {}}},
		},
	})
	if err := json.Unmarshal(stats, &v); err != nil {
		t.Errorf("%s: %v", stats, err)
	}
	if m :=
		v.(map[string]any)["model_stats"].([]any)[0].(map[string]any)["response_stats"]; reflect.ValueOf(m).Len() != 2 {
		t.Errorf("response_stats is %v", m)
	}
}

// TestErrorsEchoLittle: what a client sends does not come back to it whole in an error.
func TestErrorsEchoLittle(t *testing.T) {
	long := strings.Repeat("1", 4<<20)
	for name, body := range map[string]string{
		"shape": `{"inputs":[{"name":"x","datatype":"INT64","shape":[` + long +
			`],"data":[1]}]}`,
		"element": `{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[` + long +
			`]}]}`,
		"float element": `{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[` + long +
			`]}]}`,
		"parameter": `{"parameters":{"p":` + long + `},"inputs":[]}`,
		"key":       `{"parameters":{"` + long + `":1,"` + long + `":1},"inputs":[]}`,
		"name of tensor": `{"inputs":[{"name":"` + long +
			`","datatype":"INT64","shape":[1],"data":[-]}]}`,
	} {
		_, err := DecodeRequest(post(body, -1), testLimit, nil)
		if err == nil || len(err.Error()) > 2<<10+64 {
			t.Errorf("%s: an error of %d bytes", name, len(fmt.Sprint(err)))
		}
	}
	if text := ErrorText(strings.Repeat("\u00e9", 2<<10)); !utf8.ValidString(text) ||
		!strings.HasSuffix(text, "(4096 bytes in all)") {
		t.Errorf("cut to %q", text)
	}
	if text := ErrorText("a\xff"); text != "a\ufffd" {
		t.Errorf("foreign bytes are kept: %q", text)
	}
}
