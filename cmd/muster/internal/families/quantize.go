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
	var tables, fp16, overwrite bool
	cmd := &cobra.Command{
		Use:   "quantize FILE.onnx",
		Short: "Make an 8-bit or FP16 variant of your own model",
		Long: `Make an 8-bit variant of your own ONNX model: MatMul and Gemm with constant
weights compute in 8-bit integers, each row of a batch with a scale of its own. No
data is needed. Measure the result with "muster models evaluate".

With --fp16, for GPUs, weights are stored in FP16, and all between the inputs and the
outputs is computed in FP16. No value in between may then be above 65,504.

A file REPOSITORY/NAME/VERSION/model.onnx becomes the model NAME-int8 of that
repository, of the same family. Any other file becomes FILE-int8.onnx beside it.
(With --fp16 the names end in -fp16.)
ONNX Runtime must accept the result, else nothing is written.`,
		Example: `  muster models quantize my.onnx
  muster models quantize model-repository/ctr/3/model.onnx --tables
  muster models quantize my.onnx --fp16`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ort, err := lib.open()
			if err != nil {
				return err
			}
			kind := variants.Kind("int8")
			switch {
			case tables && fp16:
				kind = "table8+fp16"
			case tables:
				kind = "int8+table8"
			case fp16:
				kind = "fp16"
			}
			w := cmd.OutOrStdout()
			dir, model, inRepository := repositoryOf(args[0])
			if inRepository && out == "" {
				made, err := variants.Make(cmd.Context(), dir, model, kind, variants.Options{
					Family: familyOf(family, model), Overwrite: overwrite, Check: newLoadCheck(ort),
				})
				if err == nil {
					printMade(w, made, dir)
				}
				return err
			}
			if out == "" {
				out = strings.TrimSuffix(args[0], ".onnx") + kind.Name("") + ".onnx"
			}
			r, err := variants.Quantize(cmd.Context(), args[0], out, kind, overwrite,
				newLoadCheck(ort))
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
	flags.BoolVar(&fp16, "fp16", false, "compute in FP16 instead of 8 bits, for GPUs")
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
