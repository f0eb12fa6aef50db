package querytrace

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/muster-serve/muster/api/tensor"
)

func read(text string) (all []TracedQuery, err error) {
	err = Read("t", strings.NewReader(text), func(q TracedQuery) error {
		all = append(all, q)
		return nil
	})
	return all, err
}

func ids(name string, values ...int64) tensor.Tensor {
	t := tensor.Tensor{Name: name, DataType: tensor.Int64, Shape: []int64{int64(len(values))}}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint64(t.Data, uint64(v))
	}
	return t
}

// full says all that a record can say.
func full() []TracedQuery {
	return []TracedQuery{
		{
			Model: "rank", Rows: 3, Users: 1, Values: 4, Deadline: 50 * time.Millisecond,
			Client: "web", Version: "2", Outcome: "ok", Latency: 1500 * time.Microsecond,
			Inputs: []tensor.Tensor{ids("item", 1, 2, 3), ids("user", 7), ids("seen", 9, 8, 7, 6)},
		},
		{
			At: 1500*time.Microsecond + 1, Model: "rank", Rows: 1, Users: 1, Values: 2,
			Client: "é\"",
			Inputs: []tensor.Tensor{ids("item", 5), ids("user", 8), ids("seen", 1, 2)},
		},
	}
}

func TestReadsWhatIsWritten(t *testing.T) {
	var lines, arrays bytes.Buffer
	w := NewWriter(&lines)
	for _, q := range full() {
		if err := w.Write(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := WriteArrays(&arrays, full()); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{lines.String(), "\ufeff\n" + lines.String(), arrays.String()} {
		if got, err := read(text); err != nil || !reflect.DeepEqual(got, full()) {
			t.Errorf("%.300q: got %+v, %v, want %+v", text, got, err, full())
		}
	}
	const want = `{"at_ms":0,"model":"rank","rows":3,"users":1,"values":4,"deadline_ms":50,` +
		`"client":"web","version":"2","outcome":"ok","latency_ms":1.5,"inputs":[` +
		`{"name":"item","datatype":"INT64","shape":[3],"data":[1,2,3]},` +
		`{"name":"user","datatype":"INT64","shape":[1],"data":[7]},` +
		`{"name":"seen","datatype":"INT64","shape":[4],"data":[9,8,7,6]}]}` + "\n"
	if got, _, _ := strings.Cut(lines.String(), "{\"at_ms\":1.5"); got != want {
		t.Errorf("wrote %s, want %s", got, want)
	}
}

// TestCompressedLines: lines that are compressed are read as they are, with what only lines have;
// what is cut short, or compressed twice, is an error.
func TestCompressedLines(t *testing.T) {
	queries := full()
	queries[0].Outputs = []tensor.Tensor{ids("score", 3, 2, 1)}
	queries[0].Agent, queries[0].Cause, queries[0].Arm = "vm-1", "lane", "b"
	var lines bytes.Buffer
	w := NewWriter(&lines)
	for _, q := range queries {
		if err := w.Write(q); err != nil {
			t.Fatal(err)
		}
	}
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	once := e.EncodeAll(lines.Bytes(), nil)
	if got, err := read(string(once)); err != nil || !reflect.DeepEqual(got, queries) {
		t.Errorf("got %+v, %v, want %+v", got, err, queries)
	}
	for text, want := range map[string]string{
		string(once[:len(once)/2]):         "t: Zstandard: ",
		string(e.EncodeAll(once, nil)):     "t: compressed twice",
		string(e.EncodeAll([]byte{}, nil)): "t: empty",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: error %v, want one with %q", text, err, want)
		}
	}
}

// Files of before are read as they were.
func TestReadsCSV(t *testing.T) {
	got, err := read("model,arrival_ms,batch_size\nwnd,0,5\nncf,1.5,7\n")
	want := []TracedQuery{
		{Model: "wnd", Rows: 5}, {At: 1500 * time.Microsecond, Model: "ncf", Rows: 7},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestErrors(t *testing.T) {
	const header, one = "arrival_ms,model,batch_size\n", `{"at_ms":2,"model":"a","rows":1}` + "\n"
	for text, want := range map[string]string{
		"":                        "t: empty",
		header:                    "t: no queries",
		"arrival_ms,model\n":      `no column "batch_size"`,
		header + "2,a,1\n1,a,1\n": "t: line 3, column 1 (arrival_ms): found 1 ms after 2 ms",
		header + "-1,a,1\n":       "line 2, column 1 (arrival_ms): found -1",
		header + "1e300,a,1\n":    "found 1e+300",
		header + "NaN,a,1\n":      `found "NaN"`,
		header + "1,,1\n":         "line 2, column 3 (model): found no name",
		header + "1,a,0\n":        `line 2, column 5 (batch_size): found "0"`,
		header + "1,a,1.5\n":      `found "1.5"`,
		header + "1,a\n":          "t: line 2: 2 values, want 3: arrival_ms,model,batch_size",
		header + "1,a,1\n2,\"b\n": "line",

		one + `{"at_ms":1,"model":"a","rows":1}`: "t: line 2: at_ms: found 1 ms after 2 ms",
		one +
			"\n[]": `t: line 3: found "[]", want an object such`,
		`{"at_ms":1,"model":"a"}`:                        "t: line 1: rows is missing",
		`{"at_ms":1,"rows":1,"model":"a"`:                "line 1: no JSON: unexpected EOF",
		`{"at_ms":1,"rows":1,"model":"a"} 1`:             "line 1: more after the object",
		`{"at_ms":"1","rows":1,"model":"a"}`:             `at_ms: found "1", want a number of ms`,
		`{"at_ms":-1,"rows":1,"model":"a"}`:              "at_ms: found -1, want a time of 0",
		`{"at_ms":1,"rows":1.5,"model":"a"}`:             "rows: found 1.5, want an integer in 1..1048576",
		`{"at_ms":1,"rows":0,"model":"a"}`:               "rows: found 0, want an integer in 1..",
		`{"at_ms":1,"rows":1,"model":null}`:              "model: found null, want a string",
		`{"at_ms":1,"rows":1,"model":""}`:                "model: found no name",
		`{"at_ms":1,"rows":1,"model":"a","batch":1}`:     `unknown key "batch", want one of at_ms`,
		`{"at_ms":1,"rows":1,"rows":1,"model":"a"}`:      "rows is there twice",
		`{"at_ms":1,"rows":1,"model":"a","values":-1}`:   "values: found -1",
		`{"at_ms":1,"rows":1,"model":"a","inputs":[1]}`:  "inputs: ",
		`{"at_ms":1,"rows":1,"model":"a","inputs":null}`: "inputs: ",
		`{"at_ms":1,"rows":1,"model":"a","inputs":[{"name":"x","datatype":"INT64",` +
			`"shape":[3],"data":[1]}]}`: `input "x": data: byte 63: an array of 1`,
		`{"at_ms":1,"rows":1,"model":"` + strings.Repeat("a", 1025) + `"}`: "found 1025 bytes",
		`{` + strings.Repeat(" ",
			maxLineBytes): "line 1: more than 67108864",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.200q: error %v, want one with %q", text, err, want)
		}
	}
	if err := ReadFile(filepath.Join(t.TempDir(), "no.csv"), nil); err == nil ||
		!strings.Contains(err.Error(), "no.csv") {
		t.Errorf("missing file: error %v", err)
	}
}

func TestArrayErrors(t *testing.T) {
	for want, change := range map[string]func([]TracedQuery){
		"t: query 2: at_ms: found 0 ms after 5 ms": func(q []TracedQuery) {
			q[0].At, q[1].At = 5*time.Millisecond, 0
		},
		"t: query 1: rows: found 0, want an integer": func(q []TracedQuery) {
			q[0].Rows, q[0].Inputs, q[1].Inputs = 0, nil, nil
		},
		"t: query 2: model: found no name": func(q []TracedQuery) {
			q[1].Model, q[0].Inputs = "",
				nil
		},
	} {
		queries := full()
		change(queries)
		var b bytes.Buffer
		if err := WriteArrays(&b, queries); err != nil {
			t.Fatal(err)
		}
		if _, err := read(b.String()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	for want, change := range map[string]func([]TracedQuery){
		`input "item": its first dimension is not the rows`: func(q []TracedQuery) { q[1].Rows = 9 },
		`input "item": query 2 has other inputs`:            func(q []TracedQuery) { q[1].Model = "b" },
		`input "seen": its first dimension is not`:          func(q []TracedQuery) { q[1].Values = 9 },
	} {
		queries := full()
		change(queries)
		if err := WriteArrays(&bytes.Buffer{}, queries); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("writing: error %v, want one with %q", err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("arrival_ms,model,batch_size\n1,a,1\n2,b,3\n"))
	var lines, arrays bytes.Buffer
	for _, q := range full() {
		if err := NewWriter(&lines).Write(q); err != nil {
			f.Fatal(err)
		}
	}
	if err := WriteArrays(&arrays, full()); err != nil {
		f.Fatal(err)
	}
	f.Add(lines.Bytes())
	f.Add(arrays.Bytes())
	compressor, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(compressor.EncodeAll(lines.Bytes(), nil))
	f.Fuzz(func(t *testing.T, text []byte) {
		var last time.Duration
		var again bytes.Buffer
		w := NewWriter(&again)
		var all []TracedQuery
		if err := Read("t", bytes.NewReader(text), func(q TracedQuery) error {
			if q.At < last || q.Rows < 1 || q.Rows > MaxRows || q.Model == "" {
				t.Fatalf("%+v after %v", q, last)
			}
			last = q.At
			all = append(all, q)
			return w.Write(q)
		}); err != nil {
			return
		}
		if got, err := read(again.String()); err != nil || len(got) != len(all) {
			t.Fatalf("%q: %d queries, %v; want %d", again.String(), len(got), err, len(all))
		}
	})
}
