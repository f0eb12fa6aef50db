package families

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// execute runs a command of this package, or `generate`, which makes variants of MODEL in DIR.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := &cobra.Command{Use: "models", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(Commands()...)
	var v Variants
	generate := &cobra.Command{Use: "generate",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := v.Validate(); err != nil {
				return err
			}
			return v.Make(cmd, args[0], args[1], false)
		}}
	v.Add(generate.Flags())
	root.AddCommand(generate)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append(args, "--onnxruntime-lib", runtimetest.Library(t)))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func small(t *testing.T, model string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if _, err := zoo.Generate(t.Context(), dir, model,
		zoo.Options{Scale: zoo.Small, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Variants of a model are made, measured on the same rows, and rated; those of a user's own model
// in a repository too. A list tells which model fits into which family.
func TestVariants(t *testing.T) {
	dir := small(t, "ncf")
	out, err := execute(t, "generate", dir, "ncf", "--variants", "int8", "--family", "rank")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ncf-int8: made in " + dir, "TOP10", "50000 rows against ncf."} {
		if !strings.Contains(out, want) {
			t.Errorf("got %s, want %q in it", out, want)
		}
	}
	out, err = execute(t, "quantize", filepath.Join(dir, "ncf", "1", "model.onnx"), "--tables")
	if err != nil || !strings.Contains(out, "ncf-int8-table8: made in "+dir) {
		t.Fatalf("got %s and error %v", out, err)
	}
	places, err := Places(dir)
	if err != nil {
		t.Fatal(err)
	}
	if p := places["ncf"]; p.Family != "rank" || p.Accuracy != 1 || p.Reason != "" {
		t.Errorf("ncf: got %+v", p)
	}
	if p := places["ncf-int8"]; p.Family != "rank" || p.Accuracy < .5 || p.Accuracy >= 1 {
		t.Errorf("ncf-int8: got %+v", p)
	}
	if p := places["ncf-int8-table8"]; p.Family != "rank" ||
		!strings.Contains(p.Reason, "unknown") {
		t.Errorf("ncf-int8-table8: got %+v", p)
	}

	out, err = execute(t, "evaluate", "rank", "--dir", dir, "--rows", "2000", "--json", "--plot",
		filepath.Join(dir, "rank.png"))
	if err != nil {
		t.Fatal(err)
	}
	var list []measuredVariant
	if err := json.Unmarshal([]byte(out[strings.Index(out, "["):]), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 3 || list[0].Model != "ncf" || list[0].Score != 1 || list[1].Error <= 0 ||
		len(list[0].Latencies) != 3 || !(list[0].Latencies[2] > 0) {
		t.Errorf("got %+v", list)
	}
	if info, err := os.Stat(filepath.Join(dir, "rank.png")); err != nil || info.Size() < 1000 {
		t.Errorf("got plot %v, %v", info, err)
	}
	// Without --write the rating stays.
	if c := config(t, dir, "ncf-int8"); c.Measured.Rows != 50_000 || c.Metric != models.Top10 ||
		c.Measured.Against != "ncf" || c.Measured.Seed != 1 || c.Measured.Error <= 0 {
		t.Errorf("got rating %+v", c.Measured)
	}

	for name, flags := range map[string][]string{
		"ncf-fp16": {"--fp16"}, "ncf-table8-fp16": {"--fp16", "--tables"},
	} {
		file := filepath.Join(dir, "ncf", "1", "model.onnx")
		out, err := execute(t, append([]string{"quantize", file}, flags...)...)
		if err != nil || !strings.Contains(out, name+": made in "+dir) {
			t.Errorf("%v: got %s and error %v", flags, out, err)
		}
	}

	// A variant whose target the user changes is in the family no more.
	text := "family: rank\nqos_target_ms: 7\n"
	if err := os.WriteFile(filepath.Join(dir, "ncf-int8", models.ConfigFile), []byte(text),
		0o644); err != nil {
		t.Fatal(err)
	}
	if places, err = Places(dir); err != nil {
		t.Fatal(err)
	}
	want :=
		`served under its own name only: does not fit into family "rank": qos_target_ms is 7, ` +
			`5 in ncf`
	if got := places["ncf-int8"].Reason; got != want {
		t.Errorf("got reason %q, want %q", got, want)
	}
}

// Of a variant that is too inaccurate to answer for its family, the command that makes it says so,
// and so does the list.
func TestTooInaccurate(t *testing.T) {
	dir := small(t, "ncf")
	out, err := execute(t, "generate", dir, "ncf", "--variants", "int8,lowrank:1")
	if err != nil {
		t.Fatal(err)
	}
	if c := config(t, dir, "ncf-lowrank1"); !(c.Accuracy > 0 && c.Accuracy < .5) {
		t.Fatalf("the accuracy is %v, want one that is too low", c.Accuracy)
	}
	if !strings.Contains(out, "WARNING: ncf-lowrank1 is too inaccurate") ||
		strings.Count(out, "WARNING") != 1 {
		t.Errorf("got %s, want one warning, of ncf-lowrank1", out)
	}
	places, err := Places(dir)
	if err != nil {
		t.Fatal(err)
	}
	const want = `served under its own name only: too inaccurate for family "ncf-family"`
	if p := places["ncf-lowrank1"]; !strings.HasPrefix(p.Reason, want) {
		t.Errorf("got reason %q, want %q", p.Reason, want)
	}
	if p := places["ncf-int8"]; p.Reason != "" {
		t.Errorf("ncf-int8: got reason %q, want none", p.Reason)
	}
}

func config(t *testing.T, dir, model string) models.Config {
	t.Helper()
	c, err := models.ReadConfig(filepath.Join(dir, model, models.ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Against a file, the accuracies of a family follow the best score, and comments stay.
func TestEvaluateFile(t *testing.T) {
	dir := small(t, "wnd")
	if _, err := execute(t, "quantize", filepath.Join(dir, "wnd", "1", "model.onnx")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "wnd-int8", models.ConfigFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append([]byte("# mine\n"), text...), 0o644); err != nil {
		t.Fatal(err)
	}
	var header, rows strings.Builder
	header.WriteString("label")
	for i := range 512 {
		header.WriteString(",dense_" + itoa(i))
	}
	for i := range 27 {
		header.WriteString(",ids_" + itoa(i))
	}
	for i := range 100 {
		rows.WriteString("\n" + itoa(i%2))
		for j := range 512 {
			rows.WriteString("," + itoa((i*7+j*j)%5-2))
		}
		for j := range 27 {
			rows.WriteString("," + itoa((i+j)%9))
		}
	}
	file := filepath.Join(dir, "rows.csv")
	if err := os.WriteFile(file, []byte(header.String()+rows.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := execute(t, "evaluate", "wnd", "wnd-int8", "--dir", dir, "--against", file,
		"--write")
	if err != nil || !strings.Contains(out, "100 rows against rows.csv") {
		t.Fatalf("got %s and error %v", out, err)
	}
	a, b := config(t, dir, "wnd"), config(t, dir, "wnd-int8")
	if max(a.Accuracy, b.Accuracy) != 1 || a.Metric != models.AUC || b.Score == 0 ||
		b.Measured.Against != "rows.csv" || b.Measured.Rows != 100 || b.Measured.Seed != 0 {
		t.Errorf("got %+v and %+v", a, b)
	}
	if text, err = os.ReadFile(path); err != nil || !strings.Contains(string(text), "# mine\n") {
		t.Errorf("got %s, %v, want the comment in it", text, err)
	}
}

// Of models of two families that are measured together, the best of each has accuracy 1.
func TestRateFamilies(t *testing.T) {
	dir := small(t, "ncf")
	if err := os.CopyFS(filepath.Join(dir, "own"), os.DirFS(filepath.Join(dir,
		"ncf"))); err != nil {
		t.Fatal(err)
	}
	var versions []*models.Version
	for _, name := range []string{"own", "ncf"} {
		path := filepath.Join(dir, name, models.ConfigFile)
		if err := models.WriteRating(path, models.Rating{Family: "family of " + name}); err != nil {
			t.Fatal(err)
		}
		v, err := models.ReadNewest(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, v)
	}
	e := evaluation{dir: dir}
	err := e.writeRatings(versions, []measuredVariant{
		{Model: "own", Metric: models.AUC, Score: .7, Accuracy: .67},
		{Model: "ncf", Metric: models.AUC, Score: .8, Accuracy: 1},
	}, models.Measurement{Against: "rows.csv", Rows: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"own", "ncf"} {
		if c := config(t, dir, name); c.Accuracy != 1 || c.Measured.Rows != 100 {
			t.Errorf("%s: got accuracy %v of %+v, want 1", name, c.Accuracy, c.Measured)
		}
	}
}

// Latencies have no exponent, however long they are.
func TestFigures(t *testing.T) {
	for x, want := range map[float64]string{
		0.00512: "0.00512", 1.2345: "1.23", 99.96: "100", 123.6: "124", 1234.5: "1234",
		20_000: "20000",
	} {
		if got := formatFigures(x); got != want {
			t.Errorf("%v: got %s, want %s", x, got, want)
		}
	}
}

func itoa(i int) string {
	b, _ := json.Marshal(i) // a number cannot fail
	return string(b)
}

// The family of clicks is trained, quantised, measured and rated by one command.
func TestTrain(t *testing.T) {
	if testing.Short() {
		t.Skip("it trains for seconds")
	}
	dir := t.TempDir()
	out, err := execute(t, "train", "clicks", "--out", dir, "--rows", "32768", "--seed", "1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"AUC AFTER ROWS", "clicks-xs has no layer that 8 bits would make faster", "clicks-l-int8",
		"200000 rows against clicks-test.npz",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("got %s, want %q in it", out, want)
		}
	}
	best := 0.0
	for _, name := range []string{
		"clicks-xs", "clicks-s", "clicks-m", "clicks-l", "clicks-l-int8",
	} {
		c := config(t, dir, name)
		if c.Family != "clicks" || c.Score < .8 || c.Measured.Error > .002 || c.Accuracy <= .5 {
			t.Errorf("%s: got %+v", name, c)
		}
		best = max(best, c.Accuracy)
	}
	if best != 1 {
		t.Errorf("the best accuracy is %v, want 1", best)
	}
	if places, err := Places(dir); err != nil || len(places) != 7 {
		t.Errorf("got %v, %v, want 7 models", places, err)
	}
}

func TestFaults(t *testing.T) {
	dir := small(t, "ncf")
	own := filepath.Join(dir, "own")
	if err := os.CopyFS(own, os.DirFS(filepath.Join(dir, "ncf"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"own", "ncf"} {
		path := filepath.Join(dir, name, models.ConfigFile)
		if name == "own" {
			text := "family: f\ninputs: [{name: ids, id_bounds: [28]}]\nqos_target_ms: 5\n"
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := models.WriteRating(path, models.Rating{Family: "f"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := zoo.Generate(t.Context(), dir, "wnd", zoo.Options{Scale: zoo.Small}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, want string }{
		{"evaluate none", "no model and no family in " + dir + ` has the name "none"`},
		{"evaluate ncf wnd", "wnd is no variant of ncf: measure them against a FILE"},
		{"evaluate own", `not known of which model of family "f" own is a variant`},
		{"evaluate ncf --against rows.txt", `the name ends in ".txt", expected .csv or .npz`},
		{"evaluate ncf wnd --against rows.csv", "cannot be measured beside the others: "},
		{"evaluate ncf --rows -1", "--rows: got -1, want 1 to 100000000"},
		{"evaluate ncf --plot x.jpg", `--plot x.jpg: the ending is ".jpg", want .png`},
		{"evaluate ncf --plot none/x.png", "--plot: stat none: no such file"},
		{"quantize " + dir + "/none.onnx", "no such file"},
		{"train songs", `invalid argument "songs"`},
		{"generate " + dir + " ncf --variants int9", `variant "int9": expected int8`},
		{"generate " + dir + " ncf --family f", "--family f, but no --variants"},
		{"generate " + dir + " ncf --variants lookups:1/2", "no input of ids with several lookups"},
	} {
		args := strings.Split(tt.args, " ")
		if args[0] == "evaluate" {
			args = append(args, "--dir", dir)
		}
		if _, err := execute(t, args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got error %v, want one with %q", tt.args, err, tt.want)
		}
	}
}
