//go:build linux && cgo

package profilecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles/work"
	"github.com/muster-serve/muster/runtime"
)

// maxRecorded is how many recorded queries of a model are measured: more do not make the law surer
// than machines differ.
const maxRecorded = 5000

// A recordedRuns is the queries of one model, and their runs.
type recordedRuns struct {
	version *models.Version
	model   runtime.Model
	queries []querytrace.TracedQuery
	took    [][]time.Duration // by query, a run in each round
}

// measureRecorded runs the recorded queries of models on the lane that an agent of this machine has
// by default, and says how well rows alone and work predict how long they take.
func (o *options) measureRecorded(ctx context.Context, names []string, out,
	messages io.Writer) error {
	all, err := readRecorded(o.from, names)
	if err != nil {
		return err
	}
	x, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: o.library, Provider: runtime.ExecutionProvider(o.provider), GPU: o.gpu,
		Cores:   o.cores,
		Kernels: true,
	})
	if err != nil {
		return err
	}
	defer func() {
		for _, r := range all {
			if r.model != nil {
				_ = r.model.Close() // nothing of it is needed any more
			}
		}
	}()
	for _, r := range all {
		if r.version, err = models.ReadNewest(o.modelDir, r.queries[0].Model); err != nil {
			return err
		}
		if r.model, err = x.Load(ctx, r.version); err != nil {
			return err
		}
		for i := range r.queries {
			if err := orderInputs(&r.queries[i], r.version); err != nil {
				return fmt.Errorf("%s: query %d for %s: %w", o.from, i+1, r.version, err)
			}
		}
	}
	show := terminal.NewPercentage(messages, "measure")
	for round := range o.rounds {
		for _, r := range all {
			if err := r.run(ctx); err != nil {
				return err
			}
		}
		show(int64(round+1), int64(o.rounds))
	}
	return printWork(out, all)
}

// readRecorded reads the queries for some models, each of which must have some, with inputs.
func readRecorded(path string, names []string) ([]*recordedRuns, error) {
	all := make([]*recordedRuns, len(names))
	for i := range all {
		all[i] = &recordedRuns{}
	}
	err := querytrace.ReadFile(path, func(q querytrace.TracedQuery) error {
		i := slices.Index(names, q.Model)
		if i < 0 || len(all[i].queries) == maxRecorded {
			return nil
		}
		if q.Inputs == nil {
			return fmt.Errorf("%s: a query for model %q has no inputs to run", path, q.Model)
		}
		all[i].queries = append(all[i].queries, q)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, r := range all {
		if len(r.queries) == 0 {
			return nil, fmt.Errorf("%s has no queries for model %q", path, names[i])
		}
		r.took = make([][]time.Duration, len(r.queries))
	}
	return all, nil
}

// orderInputs puts a query's inputs into the order of the model's signature.
func orderInputs(q *querytrace.TracedQuery, v *models.Version) error {
	inputs := make([]tensor.Tensor, len(v.Inputs))
	for i, p := range v.Inputs {
		at := slices.IndexFunc(q.Inputs, func(t tensor.Tensor) bool { return t.Name == p.Name })
		switch {
		case at >= 0 && q.Inputs[at].DataType != p.DataType:
			return fmt.Errorf("input %q is %s, want %s", p.Name, q.Inputs[at].DataType, p.DataType)
		case at >= 0:
			inputs[i] = q.Inputs[at]
		case !p.Optional:
			return fmt.Errorf("input %q is missing", p.Name)
		}
	}
	if len(q.Inputs) > len(v.Inputs) {
		return errors.New("it has inputs that the model does not have")
	}
	q.Inputs = inputs
	return nil
}

// run runs each query once.
func (r *recordedRuns) run(ctx context.Context) error {
	for i, q := range r.queries {
		result, err := r.model.Run(ctx, q.Inputs)
		if err != nil {
			return fmt.Errorf("run %s: query %d: %w", r.version, i+1, err)
		}
		r.took[i] = append(r.took[i], result.Execution)
		result.Release()
	}
	return nil
}

// runs are the queries with their median times.
func (r *recordedRuns) runs() (runs []work.Run) {
	for i, q := range r.queries {
		slices.Sort(r.took[i])
		runs = append(runs, work.Run{Rows: q.Rows, Users: q.Users, Values: q.Values,
			Took: max(r.took[i][len(r.took[i])/2], 1)})
	}
	return runs
}

// printWork writes for each model how far off predictions are, and what a user and a value are
// worth.
func printWork(out io.Writer, all []*recordedRuns) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "model\tqueries\terror by rows\terror by work\trows a user\trows a value\t"+
		"better\t")
	for _, r := range all {
		fit := work.Learn(r.runs())
		better := "rows"
		if fit.IsBetter {
			better = "work"
		}
		fmt.Fprintf(w, "%s\t%d\t%.1f %%\t%.1f %%\t%.3g\t%.3g\t%s\t\n",
			terminal.Plain(r.version.Model),
			fit.Runs, 100*fit.RowsError, 100*fit.WorkError, fit.Law.PerUser, fit.Law.PerValue,
			better)
	}
	return w.Flush()
}
