package families

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/variants"
)

func newQuantizeCommand() *cobra.Command {
	var lib library
	var out, family string
	var tables, overwrite bool
	cmd := &cobra.Command{
		Use:   "quantize FILE.onnx",
		Short: "Make an 8-bit variant of your own model",
		Long: `Make an 8-bit variant of your own ONNX model: MatMul and Gemm with constant
weights compute in 8-bit integers, each row of a batch with a scale of its own. No
data is needed. Measure the result with "muster models evaluate".

A file REPOSITORY/NAME/VERSION/model.onnx becomes the model NAME-int8 of that
repository, of the same family. Any other file becomes FILE-int8.onnx beside it.
ONNX Runtime must accept the result, else nothing is written.`,
		Example: `  muster models quantize my.onnx
  muster models quantize model-repository/ctr/3/model.onnx --tables`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ort, err := lib.open()
			if err != nil {
				return err
			}
			kind := variants.Kind("int8")
			if tables {
				kind = "int8+table8"
			}
			w := cmd.OutOrStdout()
			dir, model, inRepository := repositoryOf(args[0])
			if inRepository && out == "" {
				made, err := variants.Make(cmd.Context(), dir, model, kind, variants.Options{
					Family: familyOf(family, model), Overwrite: overwrite, Check: accepts(ort),
				})
				if err == nil {
					printMade(w, made, dir)
				}
				return err
			}
			if out == "" {
				out = strings.TrimSuffix(args[0], ".onnx") + kind.Name("") + ".onnx"
			}
			r, err := variants.Quantize(cmd.Context(), args[0], out, kind, overwrite, accepts(ort))
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "%s: made, %d parts changed\n", out, r.Changed)
			printLeft(w, r)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", "", "`file` to write (default: see above)")
	flags.BoolVar(&tables, "tables", false, "also store embedding tables in 8 bits")
	flags.StringVar(&family, "family", "",
		"family of a model of a repository and its variant (default NAME-family)")
	flags.BoolVar(&overwrite, "overwrite", false, "replace what was made before")
	lib.add(flags)
	return cmd
}

// repositoryOf splits the path REPOSITORY/NAME/VERSION/model.onnx; false for any other.
func repositoryOf(path string) (dir, model string, ok bool) {
	version, file := filepath.Split(path)
	version = filepath.Clean(version)
	n, err := strconv.ParseInt(filepath.Base(version), 10, 64)
	if file != models.ModelFile || err != nil || n < 1 {
		return "", "", false
	}
	folder, err := filepath.Abs(filepath.Dir(version))
	return filepath.Dir(folder), filepath.Base(folder), err == nil
}
