// Package families is the commands that make the variants of a family and measure them.
package families

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/cmd/muster/internal/settings"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/clicks"
	"github.com/muster-serve/muster/models/evaluate"
	"github.com/muster-serve/muster/models/variants"
	"github.com/muster-serve/muster/runtime"
)

// Commands returns the commands `models quantize`, `models evaluate` and `models train`.
func Commands() []*cobra.Command {
	return []*cobra.Command{newQuantizeCommand(), newEvaluateCommand(), newTrainCommand()}
}

// A library is ONNX Runtime, as a flag names it.
type library struct{ path string }

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

// accepts is the variants.Check of an executor.
func accepts(ort *runtime.ONNX) variants.Check {
	return func(ctx context.Context, v *models.Version) error {
		m, err := ort.Load(ctx, v)
		if err != nil {
			return err
		}
		return m.Close()
	}
}

// Variants is what `models generate` makes beside the models: its flags.
type Variants struct {
	kinds  []string
	family string
	lib    library
}

// Add adds the flags.
func (v *Variants) Add(flags *pflag.FlagSet) {
	flags.StringSliceVar(&v.kinds, "variants", nil,
		"also make these variants of each model, and measure them: "+variants.Kinds)
	flags.StringVar(&v.family, "family", "",
		"family of the model and its variants (default MODEL-family)")
	v.lib.add(flags)
}

// Validate returns the fault of the flags, if there is one.
func (v *Variants) Validate() error {
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
			Family: familyOf(v.family, model), Overwrite: overwrite, Check: accepts(ort),
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

func familyOf(given, model string) string {
	if given != "" {
		return given
	}
	return model + "-family"
}

func printMade(w io.Writer, made variants.Made, dir string) {
	if !made.Written {
		fmt.Fprintf(w, "%s: there already in %s\n", made.Name, dir)
		return
	}
	fmt.Fprintf(w, "%s: made in %s, %d parts changed\n", made.Name, dir, made.Report.Changed)
	printLeft(w, made.Report)
}

func printLeft(w io.Writer, r variants.Report) {
	for _, left := range r.Left {
		fmt.Fprintf(w, "  left as it is: %s\n", terminal.Plain(left))
	}
}

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

const (
	// teacher is the value of --against for the model of which the others are variants.
	teacher     = "teacher"
	defaultRows = 200_000
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
			ort, err := lib.open() // first, so that nothing is trained in vain
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
					Overwrite: overwrite || written[i], Check: accepts(ort),
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
func printCurves(w io.Writer, f *clicks.Family) {
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

// An evaluation measures models of a directory.
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

// sizes are the batch sizes whose latency is measured.
var sizes = []int{1, 64, 512}

// A measured model is a line of the table. Latencies are in ms, by sizes; 0 for a size
// that the model refuses.
type measured struct {
	Model     string        `json:"model"`
	Bytes     int64         `json:"bytes"`
	Latencies []float64     `json:"latency_ms"`
	Metric    models.Metric `json:"metric"`
	Score     float64       `json:"score"`
	Error     float64       `json:"error"`
	Lost      float64       `json:"lost"`
	LostError float64       `json:"lost_error"`
	Beside    string        `json:"lost_beside"`
	Accuracy  float64       `json:"accuracy"`
	Dominated string        `json:"dominated_by,omitempty"`
}

func (e *evaluation) run(cmd *cobra.Command) error {
	versions, err := e.versions()
	if err != nil {
		return err
	}
	against := filepath.Base(e.against)
	if e.against == teacher {
		if versions, err = e.withTeacher(versions); err != nil {
			return err
		}
		against = versions[0].Model
	}
	if err := agree(versions); err != nil {
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
	progress := terminal.NewPercentage(cmd.ErrOrStderr(), "evaluate")
	var rows evaluate.Rows
	var scores []evaluate.Score
	seed := e.seed
	if e.against == teacher {
		n := e.rows
		if n == 0 {
			n = defaultRows
		}
		if rows, err = evaluate.Draw(versions[0], n, seed); err == nil {
			scores, err = evaluate.AgainstTeacher(cmd.Context(), subjects, rows, seed, progress)
		}
	} else {
		seed = 0
		var labels [][]bool
		rows, labels, err = evaluate.ReadFile(e.against, versions[0], e.rows)
		if err == nil {
			scores, err = evaluate.AgainstLabels(cmd.Context(), subjects, rows, labels, progress)
		}
	}
	if err != nil {
		return err
	}
	latencies, err := evaluate.Latencies(cmd.Context(), subjects, rows, fitting(rows.Count()))
	if err != nil {
		return err
	}
	list, err := e.list(versions, scores, latencies)
	if err != nil {
		return err
	}
	if e.write {
		if err := e.rate(versions, list, models.Measurement{
			Against: against, Rows: int64(rows.Count()), Seed: seed,
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
	return e.print(cmd.OutOrStdout(), list, rows.Count(), against)
}

// fitting returns the sizes up to the number of rows.
func fitting(rows int) []int {
	return slices.DeleteFunc(slices.Clone(sizes), func(n int) bool { return n > rows })
}

// versions reads the models that e names.
func (e *evaluation) versions() ([]*models.Version, error) {
	var list []*models.Version
	for _, name := range e.names {
		v, err := models.ReadNewest(e.dir, name)
		var more []*models.Version
		switch {
		case err == nil:
			more = append(more, v)
		case !errors.Is(err, models.ErrNotFound):
			return nil, err
		default:
			all, readErr := models.ReadAll(e.dir)
			if readErr != nil {
				return nil, readErr
			}
			for _, v := range all {
				if v.Config.Family == name {
					more = append(more, v)
				}
			}
			if len(more) == 0 {
				return nil, fmt.Errorf("no model and no family in %s has the name %q", e.dir, name)
			}
		}
		for _, v := range more {
			if !slices.ContainsFunc(list,
				func(o *models.Version) bool { return o.Model == v.Model }) {
				list = append(list, v)
			}
		}
	}
	return list, nil
}

// withTeacher puts the model of which the others are variants first.
func (e *evaluation) withTeacher(list []*models.Version) ([]*models.Version, error) {
	of := func(v *models.Version) string {
		if g := v.Config.Generated; g != nil && g.From != "" {
			return g.From
		}
		return v.Model
	}
	name := of(list[0])
	for _, v := range list {
		switch {
		case of(v) != name:
			return nil, fmt.Errorf(
				"%s is no variant of %s: measure them against a FILE of labelled "+
					"rows", v.Model, name)
		case v.Config.Generated == nil && v.Config.Family != "" && len(list) == 1:
			all, err := models.ReadAll(e.dir)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(all, func(o *models.Version) bool {
				return o.Model != v.Model && of(o) == v.Model
			}) {
				return nil, fmt.Errorf(
					"it is not known of which model of family %q %s is a variant: "+
						"measure it against a FILE of labelled rows", v.Config.Family, v.Model)
			}
		}
	}
	rest := slices.DeleteFunc(slices.Clone(list), func(v *models.Version) bool {
		return v.Model == name
	})
	v, err := models.ReadNewest(e.dir, name)
	if err != nil {
		return nil, fmt.Errorf("the model of which %s is a variant: %w", list[0].Model, err)
	}
	return append([]*models.Version{v}, rest...), nil
}

// agree checks that the models take the same rows.
func agree(list []*models.Version) error {
	var alike []*models.Version
	for _, v := range list {
		c := *v
		c.Config = models.DefaultConfig()
		c.Config.Family = "\x00" // no model's name
		alike = append(alike, &c)
	}
	_, apart := models.Families(alike)
	for name, why := range apart {
		_, why, _ = strings.Cut(why, ": ")
		return fmt.Errorf("%s cannot be measured beside the others: %s", name, why)
	}
	return nil
}

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

// list makes the lines of the table.
func (e *evaluation) list(versions []*models.Version, scores []evaluate.Score,
	latencies [][]time.Duration) ([]measured, error) {
	beside := slices.IndexFunc(scores, func(s evaluate.Score) bool { return s.Model == s.Beside })
	best := scores[beside].Value
	var list []measured
	for i, s := range scores {
		m := measured{
			Model: s.Model, Metric: s.Metric, Score: s.Value, Error: s.Error, Lost: s.Lost,
			LostError: s.LostError, Beside: s.Beside, Accuracy: s.Metric.Accuracy(s.Value, best),
		}
		for _, l := range latencies[i] {
			m.Latencies = append(m.Latencies, float64(l)/float64(time.Millisecond))
		}
		var err error
		if m.Bytes, err = bytesOf(filepath.Dir(versions[i].Path)); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	for i := range list {
		for _, other := range list {
			if list[i].Dominated == "" && list[i].dominatedBy(other) {
				list[i].Dominated = other.Model
			}
		}
	}
	return list, nil
}

// dominatedBy reports whether m is no more accurate than other and slower with batches. A few
// percent of latency are noise.
func (m measured) dominatedBy(other measured) bool {
	last := len(m.Latencies) - 1
	for i := max(0, last-1); i <= last; i++ {
		if !(m.Latencies[i] > 1.03*other.Latencies[i]) {
			return false
		}
	}
	return last >= 0 && m.Score <= other.Score
}

// bytesOf is the size of the files in a version's folder.
func bytesOf(folder string) (n int64, err error) {
	err = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}

// rate writes what was measured to the models' configurations.
func (e *evaluation) rate(versions []*models.Version, list []measured,
	how models.Measurement) error {
	for i, m := range list {
		how.Error = m.Error
		err := models.WriteRating(filepath.Join(e.dir, m.Model, models.ConfigFile), models.Rating{
			Accuracy: m.Accuracy, Score: m.Score, Metric: m.Metric, Measured: how,
		})
		if err != nil {
			return err
		}
		if family := versions[i].Config.Family; family != "" && i == len(list)-1 {
			if _, err := models.Rerate(e.dir, family); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *evaluation) print(w io.Writer, list []measured, rows int, against string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "MODEL\tBYTES\t")
	for i := range list[0].Latencies {
		fmt.Fprintf(table, "MS AT %d\t", sizes[i])
	}
	fmt.Fprintf(table, "%s\tERROR\tLOST\tERROR\tACCURACY\t\n",
		strings.ToUpper(string(list[0].Metric)))
	for _, m := range list {
		fmt.Fprintf(table, "%s\t%d\t", terminal.Plain(m.Model), m.Bytes)
		for _, l := range m.Latencies {
			fmt.Fprintf(table, "%s\t", strconv.FormatFloat(l, 'g', 3, 64))
		}
		fmt.Fprintf(table, "%.4f\t%.4f\t%.5f\t%.5f\t%.4f\t\n", m.Score, m.Error, m.Lost,
			m.LostError,
			m.Accuracy)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(
		w, "%d rows against %s. LOST is what a model scores less than %s, on the same rows.\n",
		rows, terminal.Plain(against), terminal.Plain(list[0].Beside))
	for _, m := range list {
		if m.Dominated != "" {
			but := ""
			i := slices.IndexFunc(list, func(o measured) bool { return o.Model == m.Dominated })
			if m.Bytes < list[i].Bytes {
				but = fmt.Sprintf(", but takes %.1f times the bytes",
					float64(list[i].Bytes)/float64(m.Bytes))
			}
			fmt.Fprintf(w, "%s is dominated: %s is faster and no less accurate%s\n",
				terminal.Plain(m.Model), terminal.Plain(m.Dominated), but)
		}
	}
	return nil
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
