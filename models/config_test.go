package models

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
)

const everyKey = `
qos_target_ms: 25
qos_percentile: 99.9
deadline_ms: 1000
largest_batch_size: 512
rows_independent: true
split: false
merge: nexus
tf32: true
late: reject
warm_up: [1, 8, 512]
versions: {latest: 2}
family: ctr
accuracy: 0.93
score: 0.8378
metric: auc
measured: {against: rows.csv, rows: 200000, seed: 1, error: .0012}
inputs:
  - name: dense
    data_type: FP32
    shape: [-1, 512]
  - name: ids
    id_bounds: [1000, 20, 3]
outputs:
  - {name: score, data_type: FP32, shape: [-1, 1]}
tables:
  - {name: table_0, rows: 1000, dim: 32, lookups: 1}
generated: {generator: muster zoo 1, architecture: paper, scale: 1/16, seed: 18446744073709551615,
  from: wnd, variant: int8}
`

func TestParseConfig(t *testing.T) {
	for name, c := range map[string]struct {
		yaml string
		want Config
	}{
		"empty":    {"", DefaultConfig()},
		"comments": {"# nothing yet\n", DefaultConfig()},
		"every key": {everyKey, Config{
			QoSTarget: 25 * time.Millisecond, QoSPercentile: 99.9, Deadline: time.Second,
			LargestBatchSize: 512,
			RowsIndependent:  true, StatesIndependence: true, KeepWhole: true, Merge: "nexus", TF32: true,
			Late:     LateReject,
			WarmUp:   []int{1, 8, 512},
			Versions: VersionPolicy{Latest: 2},
			Family:   "ctr", Accuracy: 0.93, Score: .8378, Metric: AUC,
			Measured: Measurement{Against: "rows.csv", Rows: 200_000, Seed: 1, Error: .0012},
			Inputs: []TensorSpec{
				{Name: "dense", DataType: tensor.FP32, Shape: []int64{Dynamic, 512}},
				{Name: "ids", IDBounds: []int64{1000, 20, 3}},
			},
			Outputs: []TensorSpec{{Name: "score", DataType: tensor.FP32, Shape: []int64{Dynamic,
				1}}},
			Tables: []EmbeddingTable{{Name: "table_0", Rows: 1000, Dim: 32, Lookups: 1}},
			Generated: &Provenance{
				Generator: "muster zoo 1", Architecture: "paper", Scale: "1/16", Seed: 1<<64 - 1,
				From: "wnd", Variant: "int8",
			},
		}},
		"defaults follow": {"qos_target_ms: 0.5\nlargest_batch_size: 8\n", Config{
			QoSTarget: 500 * time.Microsecond, QoSPercentile: 99, Deadline: 5 * time.Millisecond,
			LargestBatchSize: 8,
			Late:             LateServe, WarmUp: []int{1, 8},
		}},
		"no warm-up": {
			"warm_up: []\n", func() Config { c := DefaultConfig(); c.WarmUp = []int{}; return c }(),
		},
	} {
		got, err := parseConfig("model.yaml", []byte(c.yaml))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(c.want, got, unstated); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConfigYAML: what is written of a configuration is that configuration, for instance a
// variant's.
func TestConfigYAML(t *testing.T) {
	for _, text := range []string{
		everyKey,
		strings.Replace(everyKey, "{latest: 2}", "all", 1),
		strings.Replace(everyKey, "{latest: 2}", "[3, 5]", 1),
		"warm_up: []\n",
		"requires: 1\nqos_target_ms: 7\n",
		"tables: [{name: users}, {}]\ngenerated: {seed: 3}\n",
	} {
		want, err := parseConfig("model.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		written, err := want.YAML()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseConfig("model.yaml", written)
		if err != nil {
			t.Fatalf("%v in\n%s", err, written)
		}
		if diff := cmp.Diff(want, got, unstated); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// unstated leaves out where a value is from.
var unstated = cmpopts.IgnoreFields(Config{}, "StatesBatchSize")

// TestRequires: a file that needs a later format says so, and not that its keys are unknown.
func TestRequires(t *testing.T) {
	if c, err := parseConfig("model.yaml", []byte("requires: 1\n")); err != nil || c.Requires != 1 {
		t.Errorf("got %d, %v", c.Requires, err)
	}
	later := fmt.Sprintf("of_a_later_version: 1\nqos_target_ms: [of, another, form]\nrequires: %d\n",
		document.Format+1)
	_, err := parseConfig("model.yaml", []byte(later))
	var format *document.FormatError
	if want := fmt.Sprintf("model.yaml:3: requires format %d, but this version of Muster knows formats "+
		"up to %d: upgrade Muster here", document.Format+1, document.Format); !errors.As(err,
		&format) ||
		err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// All faults are reported at once, each with its place.
func TestParseConfigFaults(t *testing.T) {
	const faulty = `qos_target_ms: 25 ms
qos_percentile: 101
largest_batch_size: 0
rows_independent: maybe
split: true
late: drop
warm_up: [1, 2000]
versions: latest
family:
accuracy: .nan
inputs:
  - data_type: FP32
  - name: ids
    data_type: float
    shape: [1, 4]
    id_bounds: [0]
  - {name: a}
  - {name: a}
outputs:
  - {name: b, id_bounds: [1]}
tables: none
generated: {seed: -1}
qos_target: 5
deadline_ms: 5
deadline_ms: 6
merge: often
`
	want := []string{
		`model.yaml:1: qos_target_ms: got "25 ms", expected a number above 0 and up to 3600000`,
		`model.yaml:2: qos_percentile: got "101", expected a number above 0 and up to 100`,
		`model.yaml:3: largest_batch_size: got "0", expected a whole number from 1 to 1048576`,
		`model.yaml:4: rows_independent: got "maybe", expected true or false`,
		`model.yaml:6: late: got "drop", expected "serve" or "reject"`,
		`model.yaml:8: versions: got "latest", expected "all", {latest: N} or a list of versions`,
		`model.yaml:9: family: got nothing, expected text`,
		`model.yaml:10: accuracy: got ".nan", expected a number above 0 and up to 1`,
		`model.yaml:12: inputs[0]: has no name`,
		`model.yaml:14: inputs[1].data_type: got "float", expected a data type of the ` +
			`Open Inference Protocol, such as FP32 or INT64`,
		`model.yaml:15: inputs[1].shape[0]: got "1", expected -1, the batch size`,
		`model.yaml:16: inputs[1].id_bounds[0]: got "0", expected a whole number of at least 1`,
		`model.yaml:18: inputs[3]: "a" is given twice`,
		`model.yaml:20: unknown key "outputs[0].id_bounds", expected one of data_type, name, role, shape`,
		`model.yaml:21: tables: got "none", expected a list of tables`,
		`model.yaml:22: generated.seed: got "-1", expected a whole number of at least 0`,
		`model.yaml:23: unknown key "qos_target", expected one of accuracy, capture, deadline_ms, family, ` +
			`generated, inputs, largest_batch_size, late, measured, merge, metric, min_accuracy, ` +
			`outputs, qos_percentile, qos_target_ms, ragged, rows_independent, score, sent_once, ` +
			`size_of, split, tables, target_accuracy, tf32, versions, warm_up`,
		`model.yaml:25: key "deadline_ms" is given twice`,
		`model.yaml:26: merge: got "often", expected one of [deadline none]`,
		`model.yaml:24: deadline_ms: got "5", expected at least qos_target_ms, which is 100`,
		`model.yaml:5: split: got "true", expected false unless rows_independent is true`,
		`model.yaml:7: warm_up: got batch size 2000, expected at most largest_batch_size, which is 1000`,
	}
	_, err := parseConfig("model.yaml", []byte(faulty))
	if err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseConfigOfOtherShapes(t *testing.T) {
	for yaml, want := range map[string]string{
		"- 1\n": "model.yaml:1: the document: got a list, expected a " +
			"mapping",
		"a: [": "model.yaml: line 1",
		"merge: deadline\n": `model.yaml:1: merge: got "deadline", expected "none", because ` +
			"rows_independent is not true",
		"late: &x serve\nfamily: *x\n": "model.yaml:2: family: got an alias, expected text",
		"null":                         "model.yaml:1: the document: got nothing",
		"qos_target_ms: 1e-7":          `qos_target_ms: got "1e-7", expected at least 0.000001, a nano`,
	} {
		if _, err := parseConfig("model.yaml", []byte(yaml)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", yaml, err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"QoS target is 0s":        func(c *Config) { c.QoSTarget = 0 },
		"QoS percentile is 0":     func(c *Config) { c.QoSPercentile = 0 },
		"deadline is 1ms":         func(c *Config) { c.Deadline = time.Millisecond },
		"largest batch size is 0": func(c *Config) { c.LargestBatchSize = 0 },
		`merge is "x"`:            func(c *Config) { c.RowsIndependent, c.Merge = true, "x" },
		`merge is "nexus", expected "none" because rows`: func(c *Config) { c.Merge = "nexus" },
		`late is "x"`:                func(c *Config) { c.Late = "x" },
		"warm-up batch size is 1001": func(c *Config) { c.WarmUp = []int{1001} },
		"version is 0":               func(c *Config) { c.Versions.Specific = []int64{0} },
		"latest versions are -1":     func(c *Config) { c.Versions.Latest = -1 },
		"accuracy is 2":              func(c *Config) { c.Accuracy = 2 },
		"min_accuracy is 2":          func(c *Config) { c.Family, c.MinAccuracy = "f", 2 },
		"without a family":           func(c *Config) { c.MinAccuracy = .9 },
		`id bound 1 of input "ids" is 0`: func(c *Config) {
			c.Inputs = []TensorSpec{
				{Name: "ids", IDBounds: []int64{1, 0}},
			}
		},
	} {
		c := DefaultConfig()
		edit(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
}

// What model.yaml says of inputs and outputs must fit the model.
func TestReadVersionFaults(t *testing.T) {
	for yaml, want := range map[string]string{
		"inputs: [{name: idz}]": `input "idz": the model has ids`,
		"inputs: [{name: ids, data_type: " +
			"INT32}]": `input "ids": data_type is INT32, the model has INT64`,
		"inputs: [{name: ids, shape: [-1, " +
			"3]}]": `input "ids": shape is [-1 3], the model has [-1 2]`,
		"inputs: [{name: ids, id_bounds: [1, 2, " +
			"3]}]": `input "ids": got 3 id_bounds, expected 1 or as many as the second dimension of shape [-1 2]`,
		"outputs: [{name: same, data_type: " +
			"FP32}]": `output "same": data_type is FP32, the model has INT64`,
		"outputs: [{name: same, id_bounds: [1]}]":       `unknown key "outputs[0].id_bounds"`,
		"inputs: [{name: ids, id_bounds: [10, 20]}]":    "",
		"inputs: [{name: ids, id_bounds: [10]}]":        "",
		"outputs: [{name: same}]\nqos_target_ms: 1\n\n": "",
		"qos_target_ms: 1\n---\nqos_target_ms: 2\n":     "more than one document",
	} {
		b := newBench(t)
		b.add("m/1")
		b.write("m/model.yaml", yaml)
		v, err := ReadVersion(b.dir, "m", 1)
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v", yaml, err)
			} else if c := v.Config; len(c.Inputs) > 0 && len(v.Inputs[0].IDBounds) == 0 {
				t.Errorf("%q: no id bounds in %+v", yaml, v.Inputs)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), filepath.Join(b.dir, "m/model.yaml")) {
			t.Errorf("%q: got error %v, want %q and the path", yaml, err, want)
		}
	}
}

func TestReadVersionOutside(t *testing.T) {
	b := newBench(t)
	b.add("m/1")
	inner := filepath.Join(b.dir, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../m", "", ".", "..", b.dir + "/m"} {
		if _, err := ReadVersion(inner, name, 1); err == nil ||
			!strings.Contains(err.Error(), "models: invalid name") {
			t.Errorf("%q: got error %v", name, err)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(everyKey))
	f.Add([]byte("a: &a [*a]\n<<: *a\n"))
	f.Add([]byte("versions: {latest: 1}\ninputs: [{name: x, shape: [-1, -1]}]\n? [a]\n: b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig("model.yaml", data)
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("accepted %q: %v", data, err)
		}
		written, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseConfig("model.yaml", written)
		if err != nil || !cmp.Equal(c, again) {
			t.Fatalf("%q became %q: %v", data, written, err)
		}
	})
}

// TestPortBounds: the bounds in common of those that are given and those of tables, and what they
// allow.
func TestPortBounds(t *testing.T) {
	for _, tt := range []struct {
		given, tables, want []int64
		low, high           int64 // at index 1
		limited             bool
	}{
		{},
		{given: []int64{5}, want: []int64{5}, high: 5, limited: true},
		{tables: []int64{5}, want: []int64{5}, low: -5, high: 5, limited: true},
		{tables: []int64{5, 0}},
		{tables: []int64{0, 5}, low: -5, high: 5, limited: true},
		{given: []int64{7}, tables: []int64{0, 5}, want: []int64{7, 5}, high: 5, limited: true},
		{given: []int64{7, 3}, tables: []int64{5}, want: []int64{5, 3}, high: 3, limited: true},
	} {
		p := TensorSpec{IDBounds: tt.given, InferredBounds: tt.tables}
		low, high, limited := p.IDRange(1)
		if got := p.Bounds(); !slices.Equal(got, tt.want) || low != tt.low || high != tt.high ||
			limited != tt.limited {
			t.Errorf("%+v: got %v, from %d to %d %v", tt, got, low, high, limited)
		}
	}
}

// TestFormerMerging: a model.yaml whose merge is a policy that lanes had is read, and kept as it
// is, and its queries are merged by the default.
func TestFormerMerging(t *testing.T) {
	for _, policy := range []names.MergePolicy{"proteus", "nexus", "symphony", "aimd"} {
		c := DefaultConfig()
		c.RowsIndependent, c.Merge = true, policy
		if err := c.Validate(); err != nil || c.Merging() != names.MergeDeadline {
			t.Errorf("%s: merges by %q, %v", policy, c.Merging(), err)
		}
	}
}
