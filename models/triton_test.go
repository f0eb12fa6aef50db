package models

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// files are those of a repository; a model file is written by "IN -> OUT" with shapes, such as
// "x:FP32[-1,3] -> y:FP32[-1,3]".
func repositoryOf(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".onnx") {
			text = string(modelOf(text))
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// modelOf makes a model file of a signature; it is not meant to run.
func modelOf(text string) []byte {
	m := onnx.Model{Nodes: []onnx.Node{{Op: "Nothing"}}}
	in, out, _ := strings.Cut(text, " -> ")
	m.Inputs, m.Outputs = portsOf(in), portsOf(out)
	for _, p := range m.Inputs {
		m.Nodes[0].Inputs = append(m.Nodes[0].Inputs, p.Name)
	}
	for _, p := range m.Outputs {
		m.Nodes[0].Outputs = append(m.Nodes[0].Outputs, p.Name)
	}
	return m.Marshal()
}

func portsOf(text string) (ports []onnx.ValueDescription) {
	for _, one := range strings.Fields(text) {
		name, rest, _ := strings.Cut(one, ":")
		kind, dims, _ := strings.Cut(strings.TrimSuffix(rest, "]"), "[")
		p := onnx.ValueDescription{Name: name, DataType: tensor.DataType(kind)}
		for _, d := range strings.Split(dims, ",") {
			p.Shape = append(p.Shape, map[string]int64{"-1": -1, "1": 1, "2": 2, "3": 3, "4": 4}[d])
		}
		ports = append(ports, p)
	}
	return ports
}

// TestTritonConfig: what a config.pbtxt says is taken over, or named.
func TestTritonConfig(t *testing.T) {
	dir := repositoryOf(t, map[string]string{
		"m/1/net.onnx":   "x:FP32[-1,-1] ids:INT64[-1,2] -> y:FP32[-1,3]",
		"m/2/net.onnx":   "x:FP32[-1,-1] ids:INT64[-1,2] -> y:FP32[-1,3]",
		"m/1/model.plan": "", "m/labels.txt": "", "m/.git/x": "", "m/1/.hidden": "",
		"m/config.pbtxt": `
			# a comment
			name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime"
			max_batch_size: 32
			default_model_filename: "net.onnx"
			input { name: "x" data_type: TYPE_FP32 dims: [ 5 ] }
			input [ { name: "ids" data_type: TYPE_INT64 dims: 2 } ]
			output { name: "y", data_type: TYPE_FP32, dims: [ 3 ], label_filename: "labels.txt" }
			version_policy: { all { } }
			instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] } ]
			dynamic_batching {
				preferred_batch_size: [ 8, 16 ]
				default_queue_policy { default_timeout_microseconds: 50000 max_queue_size: 7 }
			}
			optimization { graph { level: 1 } }
			parameters { key: "intra_op_thread_count" value { string_value: "4" } }
			model_warmup { name: "w" batch_size: 16 inputs { key: "x" value {
				data_type: TYPE_FP32 dims: 5 random_data: true } } }
			model_warmup { batch_size: 1 }
			response_cache { enable: false }
			added_next_year: { what: 1 }
		`,
	})
	v, err := ReadVersion(dir, "m", 2)
	if err != nil {
		t.Fatal(err)
	}
	c := v.Config
	if c.LargestBatchSize != 32 || !c.RowsIndependent || c.Merging() != names.MergeDeadline ||
		!c.Versions.All || c.Deadline != 50*time.Millisecond || c.QoSTarget != c.Deadline ||
		!slices.Equal(c.WarmUp, []int{16, 1}) || v.Batchless ||
		filepath.Base(v.Path) != "net.onnx" ||
		!slices.Equal(v.Inputs[0].Shape, []int64{Dynamic, 5}) {
		t.Errorf("got %+v, inputs %v", c, v.Inputs)
	}
	want := []string{
		"config.pbtxt: unknown field added_next_year in line 21, skipped with any others",
		`config.pbtxt: without effect here: dynamic_batching.default_queue_policy.max_queue_size, ` +
			`dynamic_batching.preferred_batch_size, instance_group.count, instance_group.gpus, ` +
			`instance_group.kind, model_warmup.inputs["x"], optimization.graph.level, ` +
			`output.label_filename, parameters["intra_op_thread_count"]`,
		"nothing reads the files labels.txt",
	}
	if !slices.Equal(c.Notes, want) {
		t.Errorf("notes are %q, want %q", c.Notes, want)
	}
	if v, err = ReadVersion(dir, "m", 1); err != nil {
		t.Fatal(err)
	}
	if n := v.Config.Notes; len(n) != 3 ||
		n[2] != "nothing reads the files labels.txt, 1/model.plan" {
		t.Errorf("notes are %q", n)
	}

	// model.yaml comes first where it says something
	write := func(text string) { writeText(t, filepath.Join(dir, "m", ConfigFile), text) }
	write("qos_target_ms: 20\nlargest_batch_size: 8\nrows_independent: false\n" +
		"versions: {latest: 1}\ninputs: [{name: ids, id_bounds: [9]}]\n")
	if v, err = ReadVersion(dir, "m", 1); err != nil {
		t.Fatal(err)
	}
	if c := v.Config; c.LargestBatchSize != 8 || c.RowsIndependent ||
		c.Merging() != names.MergeNone ||
		c.Deadline != 50*time.Millisecond || c.QoSTarget != 20*time.Millisecond ||
		!slices.Equal(c.WarmUp, []int{1}) || len(v.Inputs[1].IDBounds) != 1 {
		t.Errorf("with a model.yaml: got %+v", c)
	}
	write("qos_target_ms: 60\n")
	if _, err = ReadVersion(dir, "m", 1); err == nil || !strings.Contains(err.Error(),
		`model.yaml:1: qos_target_ms: got "60", expected at most default_timeout_microseconds`) {
		t.Errorf("target above the deadline: got %v", err)
	}
}

func writeText(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestTritonBatchless: max_batch_size 0 means that dims are the whole shape.
func TestTritonBatchless(t *testing.T) {
	const model = "x:FP32[-1,3] -> y:FP32[-1,3]"
	for text, want := range map[string]bool{
		`input { name: "x" dims: [-1, 3] }`:                   true,
		`max_batch_size: 0 output { name: "y" dims: [2, 3] }`: true,
		// nothing is said of the shapes
		`max_batch_size: 0`:                             false,
		`max_batch_size: 4 input { name: "x" dims: 3 }`: false,
	} {
		dir := repositoryOf(t, map[string]string{"m/1/model.onnx": model, "m/config.pbtxt": text})
		v, err := ReadVersion(dir, "m", 1)
		if err != nil || v.Batchless != want || want != (v.Config.LargestBatchSize == 1) {
			t.Errorf("%s: got %+v, %v, want batchless %v", text, v, err, want)
		}
	}
}

func TestTritonFaults(t *testing.T) {
	const model = "x:FP32[-1,3] -> y:FP32[-1,3]"
	for text, want := range map[string]string{
		`name: "other"`:                     `name is "other", expected that of the folder, "m"`,
		`max_batch_size: -1`:                "max_batch_size is -1, expected 0 to 1048576",
		`max_batch_size: 2000000`:           "max_batch_size is 2000000",
		`max_batch_size: "8"`:               "(line 1:17)",
		`max_batch_size`:                    "(line 1:1)",
		`input { dims: 3 }`:                 "input: has no name",
		`input { name: "x" dims: [0, 3] }`:  `input "x": dims are [0 3], expected sizes above 0`,
		`input { name: "z" dims: [-1, 3] }`: `config.pbtxt does not fit`,
		`input { name: "x" dims: [3] }`:     `input "x": shape is [3], the model has [-1 3]`,
		`platform: "tensorrt_plan"`:         `platform is "tensorrt_plan" and backend "", expected`,
		`backend: "python"`:                 `backend "python"`,
		`platform: "ensemble"`:              `ensemble_scheduling is not there`,
		`sequence_batching { }`: "sequence_batching is not supported: no model " +
			"keeps state",
		`ensemble_scheduling { }`: `platform is "" and ensemble_scheduling is there`,
		`version_policy { specific { } }`: "version_policy.specific has the versions [], " +
			"expected",
		`version_policy { latest { } }`:       "num_versions is 0, expected 1 or more",
		`default_model_filename: "../x.onnx"`: `default_model_filename is "../x.onnx", expected the name`,
		`default_model_filename: "x.onnx"`:    "found model.onnx",
		`max_batch_size: 4 model_warmup { batch_size: 8 }`: "model_warmup[0].batch_size is 8, " +
			"expected at " +
			"most max_batch_size, which is 4",
		`input { name: "x" reshape { } } batch_input { } batch_output { }`: `input "x": ` +
			`reshape of dims [] to [], expected`,
		`input { name: "x" allow_ragged_batch: true }`: "allow_ragged_batch " +
			"is not supported",
		`output { name: "y" is_shape_tensor: true }`:       "is_shape_tensor is not supported",
		`model_transaction_policy { decoupled: true }`:     "decoupled is not supported",
		`model_operations { op_library_filename: "x.so" }`: "model_operations is not supported",
		`max_batch_size: 4 dynamic_batching { default_queue_policy {
			default_timeout_microseconds: 99999999999 } }`: "default_timeout_microseconds is 99999999999",
		`max_batch_size: 4 input { name: "x" data_type: TYPE_INT64 dims: 3 }`: `input "x": data_type is ` +
			`INT64, the model has FP32`,
	} {
		dir := repositoryOf(t, map[string]string{"m/1/model.onnx": model, "m/config.pbtxt": text})
		_, err := ReadVersion(dir, "m", 1)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), filepath.Join(dir, "m")) {
			t.Errorf("%s: got %v, want %q and the file", text, err, want)
		}
	}
	dir := repositoryOf(t, map[string]string{
		"m/1/model.onnx": "x:FP32[2,3] -> y:FP32[2,3]", "m/config.pbtxt": "max_batch_size: 2",
	})
	if _, err := ReadVersion(dir, "m", 1); err == nil || !strings.Contains(err.Error(),
		`max_batch_size is 2, expected 0: input "x" has shape [2 3] with a fixed first`) {
		t.Errorf("fixed shape: got %v", err)
	}
}

// abc is a repository of an ensemble "e" and its parts: "a" makes h of x, "b" makes y of h.
func abc() map[string]string {
	return map[string]string{
		"a/1/model.onnx": "x:FP32[-1,3] -> h:FP32[-1,2]",
		"a/2/model.onnx": "x:FP32[-1,3] -> h:FP32[-1,2] g:FP32[-1,1]",
		"a/model.yaml":   "inputs: [{name: x, shape: [-1, 3]}]\n",
		"b/1/model.onnx": "h:FP32[-1,2] -> y:FP32[-1,1]",
		"e/1/.keep":      "",
		"e/config.pbtxt": `
			platform: "ensemble" max_batch_size: 16
			input { name: "in" data_type: TYPE_FP32 dims: 3 }
			output { name: "out" data_type: TYPE_FP32 dims: 1 }
			ensemble_scheduling { step [
				{ model_name: "b" model_version: -1
				  input_map { key: "h" value: "middle" } output_map { key: "y" value: "out" } },
				{ model_name: "a" model_version: -1
				  input_map { key: "x" value: "in" } output_map { key: "h" value: "middle" } } ] }`,
	}
}

// TestEnsembleVersion: the steps are read, and put in order.
func TestEnsembleVersion(t *testing.T) {
	v, err := ReadVersion(repositoryOf(t, abc()), "e", 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Steps) != 2 || v.Steps[0].Version.String() != "a version 2" ||
		v.Steps[1].Version.String() != "b version 1" ||
		!slices.Equal(v.Steps[0].Inputs, []string{"in"}) ||
		!slices.Equal(v.Steps[0].Outputs, []string{"middle", ""}) ||
		!slices.Equal(v.Steps[1].Outputs, []string{"out"}) {
		t.Errorf("steps are %+v", v.Steps)
	}
	if v.Config.LargestBatchSize != 16 || v.Batchless ||
		!slices.Equal(v.Inputs[0].Shape, []int64{Dynamic, 3}) || len(v.Config.Notes) > 0 {
		t.Errorf("got %+v", v)
	}
	files := abc()
	files["a/model.yaml"] = "inputs: [{name: x, shape: [-1, 3]}]\nversions: [1]\n"
	if v, err = ReadVersion(repositoryOf(t, files), "e", 1); err != nil ||
		v.Steps[0].Version.Number != 1 {
		t.Errorf("the version policy of a part does not hold: %v, %v", v, err)
	}
}

// TestEnsembleInputs: an input has the sizes and the id bounds of all models that take it, so that
// a query which one of them refuses is refused before the first one runs. (A query with fewer ids
// than bounds made the check of its ids endless.)
func TestEnsembleInputs(t *testing.T) {
	for _, tt := range []struct { // the id bounds of the models and of the ensemble
		a, b, e string
		want    []int64
	}{
		{"[9, 7, 5]", "[6]", "", []int64{6, 6, 5}},
		{"[9]", "[6, 7, 5]", "", []int64{6, 7, 5}},
		{"[9, 8, 5]", "[6, 6, 6]", "[5, 9, 9]", []int64{5, 6, 5}},
		{"[9]", "[8]", "[7]", []int64{7}},
	} {
		files := map[string]string{
			"a/1/model.onnx": "ids:INT64[-1,3] -> h:FP32[-1,2]",
			"a/model.yaml":   "inputs: [{name: ids, id_bounds: " + tt.a + "}]\n",
			"b/1/model.onnx": "ids:INT64[-1,3] h:FP32[-1,2] -> y:FP32[-1,1]",
			"b/model.yaml":   "inputs: [{name: ids, id_bounds: " + tt.b + "}]\n",
			"e/1/.keep":      "",
			"e/config.pbtxt": `
				platform: "ensemble" max_batch_size: 16
				input { name: "ids" data_type: TYPE_INT64 dims: -1 }
				output { name: "y" data_type: TYPE_FP32 dims: 1 }
				ensemble_scheduling { step [
					{ model_name: "a" model_version: -1
					  input_map { key: "ids" value: "ids" } output_map { key: "h" value: "h" } },
					{ model_name: "b" model_version: -1
					  input_map [ { key: "ids" value: "ids" }, { key: "h" value: "h" } ]
					  output_map { key: "y" value: "y" } } ] }`,
		}
		if tt.e != "" {
			files["e/config.pbtxt"] = strings.Replace(files["e/config.pbtxt"], "dims: -1",
				"dims: 3", 1)
			files["e/model.yaml"] = "inputs: [{name: ids, id_bounds: " + tt.e + "}]\n"
		}
		v, err := ReadVersion(repositoryOf(t, files), "e", 1)
		if err != nil {
			t.Fatal(err)
		}
		if in := v.Inputs[0]; !slices.Equal(in.Shape, []int64{Dynamic, 3}) ||
			!slices.Equal(in.IDBounds, tt.want) {
			t.Errorf("got input %+v, want id bounds %v", in, tt.want)
		}
	}
}

func TestEnsembleFaults(t *testing.T) {
	for _, tt := range []struct{ old, new, want string }{
		{`model_name: "b" model_version: -1`, `model_name: "b" model_version: 7`,
			`step 1 (model "b"): `},
		{`model_name: "b"`, `model_name: "c"`, `step 1 (model "c"): models: not found`},
		{`model_name: "b"`, `model_name: "../b"`, `invalid name: model "../b"`},
		{`model_name: "b"`, `model_name: "e"`, "the ensemble is a step of itself"},
		{`model_name: "b"`, `model_name: "b" model_namespace: "n"`,
			`model_namespace "n" is not supported`},
		{`key: "h" value: "middle"`, `key: "q" value: "middle"`,
			`input_map has "q", expected one of ` +
				`the model's inputs, "h"`},
		{`input_map { key: "h" value: "middle" }`, "",
			`input_map has nothing for the model's input "h"`},
		{`output_map { key: "y" value: "out" }`, "", "output_map is empty"},
		{`key: "y" value: "out"`, `key: "y" value: ""`, `output_map has no tensor for "y"`},
		{`key: "y" value: "out"`, `key: "y" value: "middle"`,
			`output "y" makes tensor "middle", which step 2 (model "a") makes too`},
		{`key: "h" value: "middle" } output_map`, `key: "h" value: "nowhere" } output_map`,
			`input "h" gets tensor "nowhere", which is no input`},
		{`key: "x" value: "in"`, `key: "x" value: "out"`, "in a cycle"},
		{`key: "h" value: "middle" } output_map`, `key: "h" value: "in" } output_map`,
			`input "h" gets tensor "in" of the ensemble's inputs: its shape is [-1 3], expected [-1 2]`},
		{`name: "in" data_type: TYPE_FP32`, `name: "in" data_type: TYPE_INT64`,
			"it is INT64, expected FP32"},
		{`name: "in" data_type: TYPE_FP32`, `name: "in"`, `input "in": got data_type "" and dims`},
		{`name: "in"`, `name: "unused" data_type: TYPE_FP32 dims: 1 } input { name: "in"`,
			`input "unused": no step uses it`},
		{`name: "out" data_type: TYPE_FP32 dims: 1`, `name: "out" data_type: TYPE_FP32 dims: 2`,
			`output "out", which step 1 (model "b") makes: its shape is [-1 1], expected [-1 2]`},
		{`name: "out"`, `name: "none"`, `output "none": no step makes it`},
		{`name: "out"`, `name: "in"`, `output "in": no step makes it`},
		{`max_batch_size: 16`, `max_batch_size: 2000`,
			"its largest batch size is 1000, expected at least"},
		{`key: "h" value: "middle" } } ]`, `key: "h" value: "in" } } ]`,
			`output "h" makes tensor "in", which`},
	} {
		files := abc()
		files["e/config.pbtxt"] = strings.Replace(files["e/config.pbtxt"], tt.old, tt.new, 1)
		dir := repositoryOf(t, files)
		_, err := ReadVersion(dir, "e", 1)
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			!strings.Contains(err.Error(), filepath.Join(dir, "e", TritonFile)) {
			t.Errorf("%s -> %s: got %v, want %q and the file", tt.old, tt.new, err, tt.want)
		}
	}
	files := abc()
	files["e/config.pbtxt"] = strings.Replace(files["e/config.pbtxt"], `model_name: "b"`,
		`model_name: "e2"`, 1)
	files["e2/1/.keep"], files["e2/config.pbtxt"] = "", abc()["e/config.pbtxt"]
	if _, err := ReadVersion(repositoryOf(t, files), "e", 1); err == nil ||
		!strings.Contains(err.Error(), "it is an ensemble, which cannot be a step") {
		t.Errorf("ensemble of an ensemble: got %v", err)
	}
	files = abc()
	files["e/model.yaml"] = "inputs: [{name: ids, data_type: INT64, shape: [-1, 3], " +
		"id_bounds: [2, 2]}]\n"
	if _, err := ReadVersion(repositoryOf(t, files), "e", 1); err == nil ||
		!strings.Contains(err.Error(), "got 2 id_bounds, expected 1 or as many as the second") {
		t.Errorf("too few id bounds: got %v", err)
	}
	files = abc()
	files["a/2/model.onnx"] = "x:FP32[2,3] -> h:FP32[2,2]"
	files["a/model.yaml"] = ""
	if _, err := ReadVersion(repositoryOf(t, files), "e", 1); err == nil ||
		!strings.Contains(err.Error(), "it has no batch dimension, and the ensemble's") {
		t.Errorf("part without a batch: got %v", err)
	}
}

// TestEnsembleBytes: an ensemble takes the memory of its models.
func TestEnsembleBytes(t *testing.T) {
	r, err := Open(repositoryOf(t, abc()), func(context.Context, *Version) (*fake, error) {
		return nil, errors.New("not to be loaded")
	}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	bytes := map[string]int64{}
	for _, d := range r.OnDisk() {
		bytes[d.Version.Model] = d.Bytes
	}
	if bytes["a"] == 0 || bytes["b"] == 0 || bytes["e"] < bytes["a"]+bytes["b"] {
		t.Errorf("got bytes %v, want those of a and b in e", bytes)
	}
}

// TestEnsembleChanges: an ensemble's version has changed when a file of one of its models has.
func TestEnsembleChanges(t *testing.T) {
	dir := repositoryOf(t, abc())
	versions := func() map[string]fingerprint {
		t.Helper()
		found, err := newScanner(dir).scan(nil)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]fingerprint{}
		for name, f := range found {
			if f.problem != "" {
				t.Errorf("%s: %s", name, f.problem)
			}
			all[name] = f.versions[1]
		}
		return all
	}
	before := versions()
	if again := versions(); !maps.Equal(before, again) {
		t.Errorf("without a change: got %v, then %v", before, again)
	}
	writeText(t, filepath.Join(dir, "b", "1", "weights"), "new")
	after := versions()
	for name, changed := range map[string]bool{"a": false, "b": true, "e": true} {
		if (before[name] != after[name]) != changed {
			t.Errorf("%s has changed: %v, want %v", name, before[name] != after[name], changed)
		}
	}
	// the same where the model's version is a link
	if err := errors.Join(os.Rename(filepath.Join(dir, "b", "1"), filepath.Join(dir, ".b")),
		os.Symlink("../.b", filepath.Join(dir, "b", "1"))); err != nil {
		t.Fatal(err)
	}
	linked := versions()
	writeText(t, filepath.Join(dir, ".b", "weights"), "newer")
	if after = versions(); after["b"] == linked["b"] || after["e"] == linked["e"] {
		t.Error("a change behind a link is not seen")
	}
	if err := os.RemoveAll(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if last := versions(); last["e"] == after["e"] || last["b"] != after["b"] {
		t.Error("the ensemble has not changed though one of its models is gone")
	}
}

// FuzzTriton: no config.pbtxt does harm, and what is accepted is within bounds.
func FuzzTriton(f *testing.F) {
	f.Add([]byte(abc()["e/config.pbtxt"]))
	f.Add([]byte(`max_batch_size: 8 dynamic_batching { } input { name: "x" dims: 3 }`))
	f.Add([]byte(`input [ { name: "x" data_type: TYPE_STRING dims: [ -1 ] } ] # comment`))
	f.Add([]byte(`parameters: { key: "a" value: { string_value: 'b' } } what: 1`))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), TritonFile)
		writeText(t, path, string(data))
		c := unsetConfig()
		if err := readTriton(path, "m", &c); err != nil {
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%v: does not name the file", err)
			}
			return
		}
		c.setDefaults()
		if err := c.Validate(); err != nil {
			t.Errorf("accepted, and not valid: %v", err)
		}
		for _, p := range append(c.Inputs, c.Outputs...) {
			if p.Name == "" || p.DataType != "" && !p.DataType.Valid() {
				t.Errorf("accepted with the port %+v", p)
			}
		}
	})
}
