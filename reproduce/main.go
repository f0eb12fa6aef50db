// Command reproduce makes the figures of the papers that Muster follows or is compared with. It
// simulates their systems, and Muster beside them, by Muster's own packages. docs/ says what the
// figures show.
//
// It is a module of its own, so that nobody who serves models compiles or carries it:
//
//	go -C reproduce run . list
//	go -C reproduce run . kairos-fig5 --out figures
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/reproduce/figures"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "reproduce:", err)
		status := 1
		if errors.Is(err, errUsage) {
			status = 2
		}
		os.Exit(status)
	}
}

// errUsage is behind an error in the arguments.
var errUsage = errors.New("wrong arguments")

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o figures.Options
	var out string
	cmd := &cobra.Command{
		Use:   "reproduce list | all | chart | FIGURE...",
		Short: "Reproduce figures of the papers by simulation",
		Long: `Reproduce figures of the KAIROS, RIBBON, Hera and Proteus papers by simulation. Each is
written as FIGURE.csv, FIGURE.png and FIGURE.txt; the last says which results of
the paper the simulation reproduces and which it does not.

"chart" makes that of Muster's README instead, as chart.svg, and chart.md with its
numbers.

Figures: ` + strings.Join(figures.Names(), ", ") + `.

The figures use the measurements that the papers' authors published, which are part
of this program; of Hera, whose authors published none, synthetic profiles. --data
names a directory with other measurements: samples.csv.gz, and for RIBBON's figures
the tables mtwnd.json and dien.json. For Proteus's figures it is a copy of
github.com/UMass-LIDS/Proteus, whose licence permits comparisons only, so it is not
part of this program; without it the figures are of families and a trace of our own.
--pairs makes hera-fig10, hera-fig11 and hera-fig15 of the models that "muster
profile --pairs" has measured.`,
		Example: `  go -C reproduce run . kairos-fig5
  go -C reproduce run . kairos-fig8 kairos-fig9 ribbon-fig10 --out figures
  go -C reproduce run . proteus-fig4 --data Proteus
  go -C reproduce run . hera-fig10 hera-fig15 --pairs profiles.json`,
		ValidArgs:     append(figures.Names(), "all", "chart", "list"),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return reproduce(cmd, args, o, out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Data, "data", "",
		"directory with measurements to use instead of the published ones")
	flags.StringVar(&o.Pairs, "pairs", "",
		"file of muster profile --pairs to use in Hera's figures 10, 11 and 15")
	flags.StringVar(&out, "out", ".", "directory to write to; made if it does not exist")
	flags.IntVar(&o.Seeds, "seeds", 5,
		"runs to average for each throughput, each with its own seed")
	flags.IntVar(&o.Queries, "queries", 20000, "queries that arrive in each run")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w", errUsage, err)
	})
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return cmd.ExecuteContext(ctx)
}

// reproduce makes the figures that the arguments name.
func reproduce(cmd *cobra.Command, args []string, o figures.Options, out string) error {
	switch {
	case len(args) == 0:
		return fmt.Errorf("%w: name figures, all or list", errUsage)
	case slices.Equal(args, []string{"list"}):
		_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(figures.Names(), "\n"))
		return err
	case slices.Equal(args, []string{"all"}):
		args = figures.Names()
	}
	chart := slices.Equal(args, []string{"chart"})
	for _, name := range args {
		if !chart && !slices.Contains(figures.Names(), name) {
			return fmt.Errorf("%w: figure %q is unknown, there are: %s", errUsage, name,
				strings.Join(figures.Names(), ", "))
		}
	}
	if o.Seeds < 1 || o.Queries < 1 {
		return fmt.Errorf("%w: seeds and queries: %d and %d, want at least 1", errUsage, o.Seeds,
			o.Queries)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("out: %w", err)
	}
	if chart {
		return makeChart(cmd, o, out)
	}
	for _, name := range args {
		if err := makeFigure(cmd, name, o, out); err != nil {
			return err
		}
	}
	return nil
}

// makeFigure makes one figure, writes its three files to the directory out, and prints its text.
func makeFigure(cmd *cobra.Command, name string, o figures.Options, out string) error {
	began := time.Now()
	o.Clock = func() time.Duration { return time.Since(began) }
	o.Progress = reportProgress(cmd, name)
	f, err := figures.Reproduce(cmd.Context(), name, o)
	if err != nil {
		return err
	}
	path := filepath.Join(out, f.Name)
	for ending, write := range map[string]func(io.Writer) error{
		".csv": f.WriteCSV, ".png": f.WritePNG, ".txt": f.WriteText,
	} {
		if err := writeFile(path+ending, write); err != nil {
			return err
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s.csv, .png, .txt\n", f.Name, path)
	return f.WriteText(cmd.OutOrStdout())
}

// makeChart makes README's chart, as chart.svg and chart.md.
func makeChart(cmd *cobra.Command, o figures.Options, out string) error {
	o.Progress = reportProgress(cmd, "chart")
	c, err := figures.MakeChart(cmd.Context(), o)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(out, "chart.svg"), c.WriteSVG); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(out, "chart.md"), c.WriteTable); err != nil {
		return err
	}
	return c.WriteTable(cmd.OutOrStdout())
}

// reportProgress returns what prints what is being done, now and then.
func reportProgress(cmd *cobra.Command, name string) func(format string, args ...any) {
	last := time.Now()
	return func(format string, args ...any) {
		if time.Since(last) < progressEvery {
			return
		}
		last = time.Now()
		fmt.Fprintf(cmd.ErrOrStderr(), name+": "+format+"\n", args...)
	}
}

// progressEvery is the time between two lines that say what is being done.
const progressEvery = 10 * time.Second

func writeFile(name string, write func(io.Writer) error) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f)
}
