package families

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models/clicks"
	"github.com/muster-serve/muster/models/variants"
)

func newTrainCommand() *cobra.Command {
	var lib library
	var out, plot string
	var o clicks.Options
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "train clicks",
		Short: "Train a family of models whose accuracies truly differ",
		Long: `Train a family of models whose accuracies truly differ, of four sizes, with an
8-bit variant of each, and measure them. They learn to predict clicks that a known
teacher draws; nothing is downloaded. It takes minutes. The rows on which they are
measured are written beside the models, to ` + clicks.TestFile + `.`,
		Example:   `  muster models train clicks --out model-repository`,
		ValidArgs: []string{clicks.FamilyName},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// First, so that nothing is trained in vain.
			if err := (&evaluation{plot: plot}).check(); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return misuse.Wrap(err)
			}
			ort, err := lib.open()
			if err != nil {
				return err
			}
			o.Progress = terminal.NewPercentage(cmd.ErrOrStderr(), clicks.FamilyName)
			f, err := clicks.Train(cmd.Context(), o)
			if err != nil {
				return err
			}
			written, err := f.Write(out, overwrite)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			printCurves(w, f)
			names := []string{}
			for i, m := range f.Members {
				names = append(names, m.Model)
				made, err := variants.Make(cmd.Context(), out, m.Model, "int8", variants.Options{
					Overwrite: overwrite || written[i], Check: newLoadCheck(ort),
				})
				switch {
				case errors.Is(err, variants.ErrNothing):
					fmt.Fprintf(w, "%s has no layer that 8 bits would make faster\n", m.Model)
				case err != nil:
					return err
				default:
					names = append(names, made.Name)
				}
			}
			e := evaluation{
				dir: out, against: filepath.Join(out, clicks.TestFile), write: true, names: names,
				ort: ort, plot: plot,
			}
			return e.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", agent.DefaultConfig().ModelDir, "directory to write the models to")
	flags.Uint64Var(&o.Seed, "seed", 0, "seed of the teacher, the rows and the first weights")
	flags.IntVar(&o.Rows, "rows", clicks.DefaultRows, "number of rows to learn from")
	flags.BoolVar(&overwrite, "overwrite", false,
		"replace models that were trained with other options")
	flags.StringVar(&plot, "plot", "", "`FILE` to draw accuracy against latency to, as PNG")
	lib.add(flags)
	return cmd
}

// printCurves prints the learning curves.
func printCurves(w io.Writer, f *clicks.TrainedFamily) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "AUC AFTER ROWS\t")
	for _, m := range f.Members {
		fmt.Fprintf(table, "%s\t", m.Model)
	}
	fmt.Fprintln(table)
	for i, p := range f.Members[0].Curve {
		fmt.Fprintf(table, "%d\t", p.Rows)
		for _, m := range f.Members {
			fmt.Fprintf(table, "%.4f\t", m.Curve[i].AUC)
		}
		fmt.Fprintln(table)
	}
	fmt.Fprint(table, "parameters\t")
	for _, m := range f.Members {
		fmt.Fprintf(table, "%d\t", m.Parameters)
	}
	fmt.Fprint(table, "\ntraining, s\t")
	for _, m := range f.Members {
		fmt.Fprintf(table, "%.1f\t", m.Took.Seconds())
	}
	fmt.Fprintln(table)
	table.Flush()
	fmt.Fprintf(w, "The teacher's own probabilities have AUC %.4f.\n\n", f.BestAUC)
}
