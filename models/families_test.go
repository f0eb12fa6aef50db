package models

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// member makes a version of a model of family ctr; change may be nil.
func member(name string, accuracy float64, change func(*Version)) *Version {
	v := &Version{
		Model: name, Number: 1, Config: DefaultConfig(),
		Inputs: []TensorSpec{
			{Name: "dense", DataType: tensor.FP32, Shape: []int64{Dynamic, 6}},
			{Name: "ids", DataType: tensor.Int64, Shape: []int64{Dynamic, 4}, IDBounds: []int64{
				50,
			}},
		},
		Outputs: []TensorSpec{{Name: "p", DataType: tensor.FP32, Shape: []int64{Dynamic, 1}}},
	}
	v.Config.Family, v.Config.Accuracy = "ctr", accuracy
	if change != nil {
		change(v)
	}
	return v
}

func TestFamilies(t *testing.T) {
	families, apart := Families([]*Version{
		member("big", 1, nil),
		member("small", .9, func(v *Version) {
			// Neither the order of inputs nor bounds count.
			v.Inputs[0], v.Inputs[1] = v.Inputs[1], v.Inputs[0]
			v.Inputs[0].IDBounds = nil
			v.Config.LargestBatchSize = 10
			v.Outputs[0].Shape = nil
		}),
		member("middle", .95, nil),
		member("new", 0, nil),
		member("alone", 0, func(v *Version) { v.Config.Family = "" }),
		member("slow", .99, func(v *Version) { v.Config.QoSTarget = time.Second }),
		member("p95", .99, func(v *Version) { v.Config.QoSPercentile = 95 }),
		member("patient", .99, func(v *Version) { v.Config.Deadline = time.Minute }),
		member("strict", .99, func(v *Version) { v.Config.Late = LateReject }),
		member("less", .99, func(v *Version) { v.Inputs = v.Inputs[:1] }),
		member("more", .99, func(v *Version) {
			v.Outputs = append(v.Outputs, TensorSpec{Name: "q", DataType: tensor.FP32})
		}),
		member("wide", .99, func(v *Version) { v.Inputs[0].Shape = []int64{Dynamic, 7} }),
		member("half", .99, func(v *Version) { v.Outputs[0].DataType = tensor.FP16 }),
		member("a", .9, func(v *Version) { v.Config.Family = "alone" }),
		member("b", .9, func(v *Version) { v.Config.Family = "b" }),
		// A fifth less accurate than the best is accurate enough; what is measured is so beside the
		// best. What a file states goes before that, and of several the strictest.
		member("half-right", .8, nil),
		member("inexact", .79, nil),
		member("strict-best", 1, func(v *Version) {
			v.Config.Family, v.Config.MinAccuracy = "stated", .97
		}),
		member("strict-low", .96, func(v *Version) {
			v.Config.Family, v.Config.MinAccuracy = "stated", .5
		}),
		member("loose-best", 1, func(v *Version) {
			v.Config.Family, v.Config.MinAccuracy = "loose", .4
		}),
		member("loose-low", .4, func(v *Version) { v.Config.Family = "loose" }),
		member("guess", .044, nil),
		member("measured", .3, func(v *Version) {
			v.Config.Family, v.Config.Score, v.Config.Metric = "lone", .65, AUC
		}),
		member("rated", .3, func(v *Version) { v.Config.Family = "own" }),
		// Of two that disagree, the first by name is the family.
		member("x", .5, func(v *Version) { v.Config.Family = "two" }),
		member("y", 1, func(v *Version) { v.Config.Family, v.Outputs[0].Name = "two", "z" }),
	})
	own := func(name string, accuracy float64) Family {
		return Family{Name: name, Variants: []Variant{{name, accuracy, true}}}
	}
	want := []Family{
		own("a", .9), {"alone", []Variant{{"alone", 1, false}}}, own("b", .9),
		{"ctr", []Variant{
			{"big", 1, true}, {"new", 1, false}, {"middle", .95, true}, {"small", .9, true},
			{"half-right", .8, true},
		}},
		own("guess", .044), own("half", .99), own("inexact", .79),
		own("less", .99),
		{"loose", []Variant{{"loose-best", 1, true}, {"loose-low", .4, true}}}, own("measured", .3),
		own("more", .99), {"own", []Variant{{"rated", .3, true}}}, own("p95", .99),
		own("patient", .99),
		own("slow", .99), {"stated", []Variant{{"strict-best", 1, true}}}, own("strict", .99),
		own("strict-low", .96), {"two", []Variant{{"x", .5, true}}}, own("wide", .99),
		own("y", 1),
	}
	if diff := cmp.Diff(want, families); diff != "" {
		t.Errorf("families (-want +got):\n%s", diff)
	}
	fit := `does not fit into family "ctr": `
	const then = "make a more accurate variant, state a lower min_accuracy for the family, or " +
		"remove the key family from its model.yaml"
	reasons := map[string]string{
		"inexact": `too inaccurate for family "ctr": its accuracy is 0.79, less than 0.8 of the ` +
			`best one's, 1; ` + then,
		"strict-low": `too inaccurate for family "stated": its accuracy is 0.96, less than 0.97, ` +
			`the min_accuracy that a file, or muster place, states for the family`,
		"slow":    fit + "qos_target_ms is 1000, 100 in big",
		"p95":     fit + "qos_percentile is 95, 99 in big",
		"patient": fit + "deadline_ms is 60000, 1000 in big",
		"strict":  fit + "late is reject, serve in big",
		"less":    fit + `it has no input "ids", as big does`,
		"more":    fit + `it has output "q", which big does not have`,
		"wide":    fit + `input "dense" has shape [-1 7], [-1 6] in big`,
		"half":    fit + `output "p" is FP16, FP32 in big`,
		"guess": `too inaccurate for family "ctr": its accuracy is 0.044, less than 0.8 of the ` +
			`best one's, 1; ` + then,
		"measured": `too inaccurate for family "lone": its accuracy is 0.3, less than 0.8 of the ` +
			`best one's, 1; ` + then,
		"a": `family "alone" has the name of a model`,
		"b": `family "b" has the name of a model`,
		"y": `does not fit into family "two": it has no output "p", as x does`,
	}
	if diff := cmp.Diff(reasons, apart); diff != "" {
		t.Errorf("apart (-want +got):\n%s", diff)
	}
}

func TestScoreFaults(t *testing.T) {
	for text, want := range map[string]string{
		"accuracy: 0":                     `m.yaml:1: accuracy: got "0", expected a number above 0 and up to 1`,
		"accuracy: 1.2":                   `m.yaml:1: accuracy: got "1.2", expected a number above 0 and up to 1`,
		"score: -1\nmetric: auc":          `m.yaml:1: score: got "-1", expected a number above 0 and up to 1`,
		"score: .5\nmetric: f1":           `m.yaml:2: metric: got "f1", expected "auc" or "top10"`,
		"score: .5\nmetric: [auc]":        `m.yaml:2: metric: got a list, expected "auc" or "top10"`,
		"score: .5":                       `m.yaml:1: score: has no metric beside it, expected "auc" or "top10"`,
		"metric: auc":                     `m.yaml:1: metric: has no score beside it`,
		"measured: {against: a, rows: 1}": "m.yaml:1: measured: has no score beside it",
		"score: .5\nmetric: auc\nmeasured: {against: a}": "m.yaml:3: measured: expected at least " +
			"against and rows",
		"score: .5\nmetric: auc\nmeasured: {against: a, rows: " +
			"0}": `m.yaml:3: measured.rows: got "0", expected a whole number of at least 1`,
		"score: .5\nmetric: auc\nmeasured: {against: a, by: " +
			"me}": `m.yaml:3: unknown key "measured.by", expected one of against, error, rows, seed`,
		"score: .5\nmetric: auc\nmeasured: {rows: 1, error: " +
			"-1}": `m.yaml:3: measured.error: got "-1", expected a number from 0 to 1`,
		"score: .5\nmetric: auc\nmeasured: {against: a, seed: " +
			"one}": `m.yaml:3: measured.seed: got "one", expected a whole number of at least 0`,
		"family: [a]": `m.yaml:1: family: got a list, expected text`,
	} {
		_, err := parseConfig("m.yaml", []byte(text+"\n"))
		if err == nil || err.Error() != want {
			t.Errorf("%q: got error %v, want %s", text, err, want)
		}
	}
}

// TestWriteRatingOfLists: comments of lists and mappings in brackets stay, too.
func TestWriteRatingOfLists(t *testing.T) {
	path := filepath.Join(t.TempDir(), ConfigFile)
	if err := os.WriteFile(path, []byte(`warm_up: # the usual sizes
  [1, 64]
inputs:
  - name: ids
    id_bounds: [50] # users
    shape: # rows
      [-1, 1] # and an id
accuracy: 0.5 # a guess
versions: # for a rollback
  {latest: 2}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WriteRating(path, Rating{Accuracy: .98}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = `warm_up: [1, 64] # the usual sizes
inputs:
  - name: ids
    id_bounds: [50] # users
    shape: [-1, 1] # rows # and an id
accuracy: 0.98 # a guess
versions: {latest: 2} # for a rollback
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWriteRating(t *testing.T) {
	path := filepath.Join(t.TempDir(), ConfigFile)
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	r := Rating{
		Family: "ctr", Accuracy: .98, Score: .8378, Metric: AUC,
		Measured: Measurement{Against: "rows.csv", Rows: 1000, Seed: 1, Error: .00123456},
	}
	const rated = `family: ctr
accuracy: 0.98
score: 0.8378
metric: auc
measured: {against: rows.csv, rows: 1000, seed: 1, error: 0.001235}
`
	if err := WriteRating(path, r); err != nil || read() != rated {
		t.Errorf("without a file: got error %v and\n%s", err, read())
	}
	write(`# our model
qos_target_ms: 5 # agreed in May
requires: 1 # so far
accuracy: 0.5 # a guess
# what the gateway sends
inputs:
  - name: ids # four of them
    id_bounds: [50]
`)
	if err := WriteRating(path, r); err != nil {
		t.Fatal(err)
	}
	const want = `# our model
qos_target_ms: 5 # agreed in May
requires: 1 # so far
accuracy: 0.98 # a guess
# what the gateway sends
inputs:
  - name: ids # four of them
    id_bounds: [50]
family: ctr
score: 0.8378
metric: auc
measured: {against: rows.csv, rows: 1000, seed: 1, error: 0.001235}
`
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	write("# nothing yet\n")
	if err := WriteRating(path, Rating{Family: "ctr"}); err != nil ||
		read() != "# nothing yet\n\nfamily: ctr\n" && read() != "# nothing yet\nfamily: ctr\n" {
		t.Errorf("comments alone: got error %v and\n%s", err, read())
	}
	// A file that is wrong, or would be, stays.
	write("familie: ctr\n")
	if err := WriteRating(path, r); err == nil || !strings.Contains(err.Error(), `"familie"`) ||
		read() != "familie: ctr\n" {
		t.Errorf("wrong file: got error %v and\n%s", err, read())
	}
	write("qos_target_ms: 5\n")
	r.Accuracy = 2
	if err := WriteRating(path, r); err == nil || !strings.Contains(err.Error(), "accuracy") ||
		read() != "qos_target_ms: 5\n" {
		t.Errorf("wrong rating: got error %v and\n%s", err, read())
	}
}

// The accuracies of a family follow the score of the model that gave the labels, or the best score.
func TestRerate(t *testing.T) {
	port := func(name string) []onnx.ValueDescription {
		return []onnx.ValueDescription{{Name: name, DataType: tensor.FP32, Shape: []int64{Dynamic,
			1}}}
	}
	m := onnx.Model{Inputs: port("x"), Outputs: port("y"), Nodes: []onnx.Node{
		{Op: "Relu", Inputs: []string{"x"}, Outputs: []string{"y"}},
	}}
	for against, want := range map[string][]float64{
		"big":      {1, 1, .5}, // small is above it by chance
		"rows.csv": {.833333, 1, .416667},
	} {
		dir := t.TempDir()
		for name, score := range map[string]float64{"big": .75, "small": .8, "tiny": .625} {
			if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name, "1", ModelFile), m.Marshal(),
				0o644); err != nil {
				t.Fatal(err)
			}
			if err := WriteRating(filepath.Join(dir, name, ConfigFile), Rating{
				Family: "f", Accuracy: .1, Score: score, Metric: AUC,
				Measured: Measurement{Against: against, Rows: 10, Error: score / 10},
			}); err != nil {
				t.Fatal(err)
			}
		}
		changed, err := Rerate(dir, "f")
		if err != nil || len(changed) != 3 {
			t.Fatalf("got %v, %v, want three models changed", changed, err)
		}
		for i, name := range []string{"big", "small", "tiny"} {
			v, err := ReadNewest(dir, name)
			if err != nil {
				t.Fatal(err)
			}
			if got := v.Config.Accuracy; got != want[i] {
				t.Errorf("against %s: %s has accuracy %v, want %v", against, name, got, want[i])
			}
		}
		if changed, err := Rerate(dir, "f"); err != nil || len(changed) != 0 {
			t.Errorf("again: got %v, %v, want nothing changed", changed, err)
		}
	}
}
