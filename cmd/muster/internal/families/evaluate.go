package families

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/evaluate"
	"github.com/muster-serve/muster/runtime"
)

const (
	// teacher is the value of --against for the model that the others are variants of.
	teacher     = "teacher"
	defaultRows = 200_000
	maxRows     = 100_000_000
	// generatedRows is on how many rows `models generate` measures variants. Differences between
	// variants are known well enough from those.
	generatedRows = 50_000
)

func newEvaluateCommand() *cobra.Command {
	var lib library
	e := evaluation{}
	cmd := &cobra.Command{
		Use:   "evaluate MODEL...",
		Short: "Measure how accurate and how fast models of a directory are",
		Long: `Measure how accurate and how fast models of a directory are. MODEL may be a family.

--against FILE takes labelled rows from a .csv or .npz file. An .npz file has an
array for each input, and one named label. A .csv file has a column for each input,
or INPUT_0, INPUT_1, ... if a row of it has several elements, and a column label.
Labels are 0 or 1; the score is the AUC.

--against teacher needs no data: the model of which the others are variants labels
random rows, each 1 with the probability that it answers. If it answers no
probabilities, the score is the share of its ten best of 100 items that a variant
keeps. Such a score says how much a variant loses against its model, and nothing
about how good that is.

Latencies are medians of runs with one thread, in turns. A model that is slower than
another and no more accurate is called dominated.`,
		Example: `  muster models evaluate wnd-int8
  muster models evaluate ctr ctr-int8 --against holdout.npz --write
  muster models evaluate clicks --against model-repository/clicks-test.npz --plot clicks.png`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := e.check(); err != nil {
				return err
			}
			var err error
			if e.ort, err = lib.open(); err != nil {
				return err
			}
			e.names = args
			return e.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&e.dir, "dir", agent.DefaultConfig().ModelDir, "directory of the models")
	flags.StringVar(&e.against, "against", teacher, "`FILE` with labelled rows, or \"teacher\"")
	flags.IntVar(&e.rows, "rows", 0,
		"number of rows (default: all of the file, or "+strconv.Itoa(defaultRows)+")")
	flags.Uint64Var(&e.seed, "seed", 1, "seed of the random rows and labels")
	flags.BoolVar(&e.write, "write", false,
		"write accuracy, score, metric and measured to each model.yaml")
	flags.StringVar(&e.plot, "plot", "", "`FILE` to draw accuracy against latency to, as PNG")
	flags.BoolVar(&e.asJSON, "json", false, "print as JSON")
	lib.add(flags)
	return cmd
}

// An evaluation measures models of a directory on the same rows.
type evaluation struct {
	dir, against string
	rows         int // 0 for the default
	seed         uint64
	write        bool
	plot         string // path; empty for none
	asJSON       bool
	names        []string // models and families
	ort          *runtime.ONNX
}

// check returns the fault of the flags, if there is one.
func (e *evaluation) check() error {
	if e.rows < 0 || e.rows > maxRows {
		return misuse.Errorf("--rows: got %d, want 1 to %d, or 0 for the default", e.rows, maxRows)
	}
	if e.plot != "" {
		if ending := filepath.Ext(e.plot); ending != ".png" {
			return misuse.Errorf("--plot %s: the ending is %q, want .png", e.plot, ending)
		}
		if _, err := os.Stat(filepath.Dir(e.plot)); err != nil {
			return misuse.Errorf("--plot: %w", err)
		}
	}
	return nil
}

// run measures the models, and writes, draws and prints the result as the flags ask.
func (e *evaluation) run(cmd *cobra.Command) error {
	versions, err := e.readVersions()
	if err != nil {
		return err
	}
	against := filepath.Base(e.against)
	if e.against == teacher {
		if versions, err = e.withTeacher(versions); err != nil {
			return err
		}
		against = versions[0].Model
	} else {
		e.seed = 0 // a file's rows need none
	}
	if err := checkSameRows(versions); err != nil {
		return err
	}
	var subjects []evaluate.Subject
	for _, v := range versions {
		m, err := e.ort.Load(cmd.Context(), v)
		if err != nil {
			return fmt.Errorf("load %s: %w", v, err)
		}
		defer m.Close()
		subjects = append(subjects, subjectOf(v, m))
	}
	rows, scores, err := e.scoreSubjects(cmd, subjects)
	if err != nil {
		return err
	}
	latencies, err := evaluate.Latencies(cmd.Context(), subjects, rows, sizesUpTo(rows.Count()))
	if err != nil {
		return err
	}
	list, err := tableOf(versions, scores, latencies)
	if err != nil {
		return err
	}
	if e.write {
		if err := e.writeRatings(versions, list, models.Measurement{
			Against: against, Rows: int64(rows.Count()), Seed: e.seed,
		}); err != nil {
			return err
		}
	}
	if e.plot != "" {
		if err := writeChart(e.plot, list); err != nil {
			return err
		}
	}
	if e.asJSON {
		return terminal.PrintJSON(cmd.OutOrStdout(), list)
	}
	return printTable(cmd.OutOrStdout(), list, rows.Count(), against)
}

// scoreSubjects returns the rows, and how well the subjects answer them. The first is the teacher,
// if there is one.
func (e *evaluation) scoreSubjects(cmd *cobra.Command,
	subjects []evaluate.Subject) (rows evaluate.Rows,
	scores []evaluate.Score, err error) {
	ctx, first := cmd.Context(), subjects[0].Version
	progress := terminal.NewPercentage(cmd.ErrOrStderr(), "evaluate")
	if e.against == teacher {
		if rows, err = evaluate.Draw(first, cmp.Or(e.rows, defaultRows), e.seed); err != nil {
			return nil, nil, err
		}
		scores, err = evaluate.AgainstTeacher(ctx, subjects, rows, e.seed, progress)
		return rows, scores, err
	}
	rows, labels, err := evaluate.ReadFile(e.against, first, e.rows)
	if err != nil {
		return nil, nil, err
	}
	scores, err = evaluate.AgainstLabels(ctx, subjects, rows, labels, progress)
	return rows, scores, err
}

// sizesUpTo returns the sizes up to the number of rows.
func sizesUpTo(rows int) []int {
	return slices.DeleteFunc(slices.Clone(sizes), func(n int) bool { return n > rows })
}

// subjectOf makes a loaded model one that package evaluate measures.
func subjectOf(v *models.Version, m runtime.Model) evaluate.Subject {
	return evaluate.Subject{Version: v, Run: func(ctx context.Context, inputs []tensor.Tensor,
		use func([]tensor.Tensor) error) error {
		r, err := m.Run(ctx, inputs)
		if err != nil {
			return err
		}
		defer r.Release()
		return use(r.Outputs)
	}}
}

// writeRatings writes what was measured to the models' configurations.
func (e *evaluation) writeRatings(versions []*models.Version, list []measuredVariant,
	how models.Measurement) error {
	for _, m := range list {
		how.Error = m.Error
		err := models.WriteRating(filepath.Join(e.dir, m.Model, models.ConfigFile), models.Rating{
			Accuracy: m.Accuracy, Score: m.Score, Metric: m.Metric, Measured: how,
		})
		if err != nil {
			return err
		}
	}
	// The others of a family may have been measured on the same rows before.
	rated := map[string]bool{"": true}
	for _, v := range versions {
		if family := v.Config.Family; !rated[family] {
			rated[family] = true
			if _, err := models.Rerate(e.dir, family); err != nil {
				return err
			}
		}
	}
	return nil
}
