package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/sim/figures"
)

func newReproduceCommand() *cobra.Command {
	var o figures.Options
	var out string
	cmd := &cobra.Command{
		Use:   "reproduce FIGURE...",
		Short: "Reproduce figures of the papers by simulation",
		Long: `Reproduce figures of the KAIROS, RIBBON, Hera and Proteus papers by simulation. Each is
written as FIGURE.csv, FIGURE.png and FIGURE.txt; the last says which results of
the paper the simulation reproduces and which it does not.

Figures: ` + strings.Join(figures.Names(), ", ") + `.

The figures use the measurements that the papers' authors published, which are part
of this program; of Hera, whose authors published none, synthetic profiles. --data
names a directory with other measurements: samples.csv.gz, and for RIBBON's figures
the tables mtwnd.json and dien.json. For Proteus's figures it is a copy of
github.com/UMass-LIDS/Proteus, whose licence permits comparisons only, so it is not
part of this program; without it the figures are of families and a trace of our own.`,
		Example: `  muster reproduce kairos-fig5
  muster reproduce kairos-fig8 kairos-fig9 ribbon-fig10 --out figures
  muster reproduce proteus-fig4 --data Proteus`,
		Args:      cobra.MinimumNArgs(1),
		ValidArgs: figures.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if !slices.Contains(figures.Names(), name) {
					return misuse.Errorf("figure %q is unknown, there are: %s", name,
						strings.Join(figures.Names(), ", "))
				}
			}
			if o.Seeds < 1 || o.Queries < 1 {
				return misuse.Errorf("seeds and queries: %d and %d, want at least 1", o.Seeds,
					o.Queries)
			}
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
	flags.StringVar(&o.Data, "data", "",
		"directory with measurements to use instead of the published ones")
	flags.StringVar(&out, "out", ".", "directory to write to; made if it does not exist")
	flags.IntVar(&o.Seeds, "seeds", 5,
		"runs to average for each throughput, each with its own seed")
	flags.IntVar(&o.Queries, "queries", 20000, "queries that arrive in each run")
	return cmd
}

// reproduce makes one figure, writes its three files to the directory out, and prints its text.
func reproduce(cmd *cobra.Command, name string, o figures.Options, out string) error {
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	began := time.Now()
	o.Clock = func() time.Duration { return time.Since(began) }
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
