// Package families is the commands that make the variants of a family and measure them: `models
// quantize`, `models evaluate` and `models train`, and what `models generate` and `models list`
// need of them.
package families

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/cmd/muster/internal/settings"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/variants"
	"github.com/muster-serve/muster/runtime"
)

// Commands returns the commands `models quantize`, `models evaluate` and `models train`.
func Commands() []*cobra.Command {
	return []*cobra.Command{newQuantizeCommand(), newEvaluateCommand(), newTrainCommand()}
}

// A library is the ONNX Runtime that a command measures and checks with.
type library struct{ path string }

// add adds the flag that names it.
func (l *library) add(flags *pflag.FlagSet) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringVar(&l.path, "onnxruntime-lib", "",
		"ONNX Runtime library to load instead of the embedded one")
	settings.Add(flags, fs)
}

// open opens ONNX Runtime with one thread a run.
func (l *library) open() (*runtime.ONNX, error) {
	return runtime.OpenONNX(runtime.Config{LibraryPath: l.path, Provider: runtime.CPU, Cores: 1})
}

// newLoadCheck returns a check that ONNX Runtime loads a variant.
func newLoadCheck(ort *runtime.ONNX) variants.Check {
	return func(ctx context.Context, v *models.Version) error {
		m, err := ort.Load(ctx, v)
		if err != nil {
			return err
		}
		return m.Close()
	}
}

// familyOf is the family of a model and its variants: the given one, or one named after the model.
func familyOf(given, model string) string {
	if given != "" {
		return given
	}
	return model + "-family"
}

// printMade says what became of a variant in the directory dir.
func printMade(w io.Writer, made variants.Made, dir string) {
	if !made.Written {
		fmt.Fprintf(w, "%s: already in %s\n", made.Name, dir)
		return
	}
	fmt.Fprintf(w, "%s: made in %s, %d parts changed\n", made.Name, dir, made.Report.Changed)
	printLeft(w, made.Report)
}

func printLeft(w io.Writer, r variants.Report) {
	for _, left := range r.Left {
		fmt.Fprintf(w, "  unchanged: %s\n", terminal.Plain(left))
	}
}

// A Place is where a model is in its directory's families.
type Place struct {
	Family   string  // empty if the model is in none but its own
	Accuracy float64 // 0 if unknown
	// Reason is why the model is served under its own name only, though it names a family; or what
	// the family lacks.
	Reason string
}

// Places returns the places of the models in a directory that can be read, by name.
func Places(dir string) (map[string]Place, error) {
	all, err := models.ReadAll(dir)
	if err != nil {
		return nil, err
	}
	_, apart := models.Families(all)
	places := map[string]Place{}
	for _, v := range all {
		p := Place{Family: v.Config.Family, Accuracy: v.Config.Accuracy}
		if why, ok := apart[v.Model]; ok {
			p.Reason = "served under its own name only: " + why
		} else if p.Family != "" && p.Accuracy == 0 {
			p.Reason = "accuracy unknown: see muster models evaluate"
		}
		places[v.Model] = p
	}
	return places, nil
}
