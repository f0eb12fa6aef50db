package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/sim/figures"
)

func newReproduceCommand() *cobra.Command {
	var o figures.Options
	var out string
	cmd := &cobra.Command{
		Use:   "reproduce FIGURE...",
		Short: "Reproduce figures of the papers by simulation",
		Long: `Reproduce figures of the KAIROS and RIBBON papers: each as FIGURE.csv,
FIGURE.png, and FIGURE.txt, which says what reproduces and what does not.

Figures: ` + strings.Join(figures.Names(), ", ") + `.

They are made from what was published with the papers, which this program holds.
--data names a directory with other samples (samples.csv.gz) and, for RIBBON's
figures, tables (mtwnd.json, dien.json).`,
		Example: `  muster reproduce kairos-fig5
  muster reproduce kairos-fig8 kairos-fig9 ribbon-fig10 --out figures`,
		Args:      cobra.MinimumNArgs(1),
		ValidArgs: figures.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(out, 0o755); err != nil {
				return fmt.Errorf("out: %w", err)
			}
			for _, name := range args {
				if err := reproduce(cmd, name, o, out); err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Data, "data", "", "directory with other samples than the published ones")
	flags.StringVar(&out, "out", ".", "directory to write to; made if it is not there")
	flags.IntVar(&o.Seeds, "seeds", 5, "runs that a throughput is the mean of")
	flags.IntVar(&o.Queries, "queries", 20000, "queries that arrive in a run")
	return cmd
}

func reproduce(cmd *cobra.Command, name string, o figures.Options, out string) error {
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	o.Progress = func(format string, args ...any) { line.Show(name+": "+format, args...) }
	f, err := figures.Reproduce(cmd.Context(), name, o)
	line.Done()
	if err != nil {
		return err
	}
	path := filepath.Join(out, f.Name)
	if err := writeFile(path+".csv", f.WriteCSV); err != nil {
		return err
	}
	if err := writeFile(path+".png", f.WritePNG); err != nil {
		return err
	}
	if err := writeFile(path+".txt", f.WriteText); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s.csv, .png, .txt\n", f.Name, path)
	return f.WriteText(cmd.OutOrStdout())
}
