package importcmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// run runs `muster models ARGS` and returns what it prints.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := &cobra.Command{Use: "models", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(Commands()...)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(args)
	err := root.Execute()
	return out.String(), err
}

// TestAddAndCheck: what is added can be checked as a file, a version, a model and a repository; a
// file that is no model is named, and fails the check.
func TestAddAndCheck(t *testing.T) {
	const file = "../../../../runtime/testdata/lightgbm.onnx"
	dir := filepath.Join(t.TempDir(), "repository")
	out, err := run(t, "add", file, "--out", dir, "--name", "clicks")
	if err != nil || !strings.Contains(out, "clicks version 1: added to "+dir) {
		t.Fatalf("%s, %v", out, err)
	}
	for _, path := range []string{
		file, filepath.Join(dir, "clicks", "1", "model.onnx"), filepath.Join(dir, "clicks", "1"),
		filepath.Join(dir, "clicks"), dir,
	} {
		out, err := run(t, "check", path)
		for _, want := range []string{
			": can be served", "batches: up to 1000 rows a query", "input input: FP32 [-1 3]",
			`output probabilities: FP32 [-1 2], columns ["0" "1"]`, `note: output "label" is declared`,
		} {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%s: %v, the output lacks %q:\n%s", path, err, want, out)
			}
		}
	}
	if _, err := run(t, "add", filepath.Join(dir, "clicks", "1", "model.onnx")); err == nil ||
		!strings.Contains(err.Error(), "give --name") {
		t.Errorf("without a name: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tree.pkl"), []byte("\x80\x05"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err = run(t, "check", dir)
	if err == nil || !strings.Contains(err.Error(), "1 of 2 models cannot be served") ||
		!strings.Contains(out, "tree.pkl: cannot be served") || !strings.Contains(out, "skl2onnx") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestCheckNamesKernels: check says who looks rows of tables up, of a model of PyTorch and of one
// that Muster's operators cannot serve.
func TestCheckNamesKernels(t *testing.T) {
	for name, want := range map[string]string{
		"sum-dynamo":          "kernels: Muster's operators do the lookups in 3 tables",
		"bag-sum-dynamo":      "kernels: Muster's operators do the lookups in 3 tables",
		"bags-padding-dynamo": "kernels: ONNX Runtime's operators do the lookups in tables: ",
	} {
		out, err := run(t, "check", "../../../../runtime/kernels/testdata/"+name+".onnx")
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, the output lacks %q:\n%s", name, err, want, out)
		}
	}
	if out, err := run(t, "check", "../../../../runtime/testdata/lightgbm.onnx"); err != nil ||
		strings.Contains(out, "kernels") {
		t.Errorf("a model without tables: %v\n%s", err, out)
	}
}
