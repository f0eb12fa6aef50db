package families

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/models/variants"
)

// Variants is what `models generate` makes beside the models: its flags.
type Variants struct {
	kinds  []string
	family string
	lib    library
}

// Add adds the flags.
func (v *Variants) Add(flags *pflag.FlagSet) {
	lists.Var(flags, &v.kinds, "variants", nil,
		"also make these variants of each model, and measure them: "+variants.Kinds)
	flags.StringVar(&v.family, "family", "",
		"family of the model and its variants (default MODEL-family)")
	v.lib.add(flags)
}

// Validate returns the fault of the flags, if there is one.
func (v *Variants) Validate() error {
	if v.family != "" && len(v.kinds) == 0 {
		return fmt.Errorf("--family %s, but no --variants: a family is a model and its variants",
			v.family)
	}
	for _, k := range v.kinds {
		if err := variants.Kind(k).Validate(); err != nil {
			return err
		}
	}
	return nil
}

// Make makes the variants of a model in the directory dir, measures them beside the model, and
// prints how they compare. It does nothing if no variants are asked for.
func (v *Variants) Make(cmd *cobra.Command, dir, model string, overwrite bool) error {
	if len(v.kinds) == 0 {
		return nil
	}
	ort, err := v.lib.open()
	if err != nil {
		return err
	}
	names := []string{model}
	for _, k := range v.kinds {
		made, err := variants.Make(cmd.Context(), dir, model, variants.Kind(k), variants.Options{
			Family: familyOf(v.family, model), Overwrite: overwrite, Check: newLoadCheck(ort),
		})
		if err != nil {
			return err
		}
		printMade(cmd.OutOrStdout(), made, dir)
		names = append(names, made.Name)
	}
	e := evaluation{
		dir: dir, against: teacher, rows: generatedRows, seed: 1, write: true, names: names,
		ort: ort,
	}
	return e.run(cmd)
}
