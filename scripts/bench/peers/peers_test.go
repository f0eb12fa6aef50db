package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// TestResults: results are read as they were written, without a line that was cut off, and a server
// that failed is measured again.
func TestResults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.jsonl")
	if all, err := readResults(file); err != nil || all != nil {
		t.Fatalf("no file: got %v, %v", all, err)
	}
	wrote := results{
		{Server: "Muster", Cases: map[string]figures{"ncf 1": {P50: 70, P99: 90, Rate: 9000}}},
		{Server: "Ray Serve", Error: "no"},
	}
	for _, x := range wrote {
		if err := appendResult(file, x); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"server": "Mus`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	all, err := readResults(file)
	if err != nil || len(all) != 2 || all[0].Cases["ncf 1"] != wrote[0].Cases["ncf 1"] {
		t.Fatalf("got %+v, %v", all, err)
	}
	one, other := []query{{name: "ncf 1"}}, []query{{name: "ncf 1"}, {name: "ncf 256"}}
	if !all.hasRound(0, "Muster", one) || all.hasRound(0, "Muster", other) || all.hasRound(1,
		"Muster", one) ||
		all.hasRound(0, "Ray Serve", one) {
		t.Error("what is measured is not what was written")
	}
}

// TestTables: figures are medians, ratios are of the same round, and what is lost is said.
func TestTables(t *testing.T) {
	var all results
	for round, us := range []float64{100, 300, 200} {
		all = append(all,
			result{Round: round, Server: "FastAPI",
				Cases: map[string]figures{"wnd 64": {P50: us / 2, P99: us, Rate: 1e6 / us}}},
			result{Round: round, Server: "Muster",
				Cases: map[string]figures{"wnd 64": {P50: us, P99: 2 * us, Rate: 2e6 / us}}},
			result{Round: round, Server: "Muster, SDK",
				Cases: map[string]figures{"wnd 64": {P50: us / 1.6, P99: us, Rate: 1e6 / us}}})
	}
	all = append(all, result{Round: 0, Server: "LitServe", Error: "port taken"})
	var text strings.Builder
	all.write(&text)
	for _, want := range []string{
		"3 rounds;", "| Muster | 200 |\n| Muster, SDK | 125 |\n| FastAPI | 100 |",
		"| Muster | 400 |",
		"| Muster | 10000 |\n| Muster, SDK | 5000 |\n| FastAPI | 5000 |",
		"| wnd 64 | 0.50 | 0.80 | FastAPI | 2.00 | 2.00 | FastAPI |",
		"best row loses by more than 2 %: wnd 64: p50 is 1.25 x that of FastAPI.",
		"LitServe failed: port taken",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("want %q in:\n%s", want, text.String())
		}
	}
}

// TestQueries: all ways send the same values.
func TestQueries(t *testing.T) {
	v := &models.Version{Model: "m", Inputs: []models.TensorSpec{
		{Name: "dense", DataType: tensor.FP32, Shape: []int64{models.Dynamic, 2}},
		{Name: "ids", DataType: tensor.Int64, Shape: []int64{models.Dynamic, 3}, IDBounds: []int64{
			1,
		}},
	}}
	q, err := newQuery(v, 2, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	values := slices.Concat(q.grpc.RawInputContents...)
	if len(values) != 2*2*4+2*3*8 || !bytes.Equal(q.bytes[8:], values) ||
		!bytes.Equal(q.rest[q.header:], values) ||
		string(q.bytes[:8]) != "m\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("got %q, %q and %q", q.bytes, q.rest, values)
	}
	want := `{"inputs":[{"name":"dense","datatype":"FP32","shape":[2,2],` +
		`"parameters":{"binary_data_size":16}},{"name":"ids","datatype":"INT64","shape":[2,3],` +
		`"parameters":{"binary_data_size":48}}],"parameters":{"binary_data_output":true}}`
	if got := string(q.rest[:q.header]); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
