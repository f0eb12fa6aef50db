package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/plancmd"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/sim"
)

func newPlanTableCommand() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "table FILE|published",
		Short: "Search a table of measured fleets for the cheapest that meets its QoS target",
		Long: `Search a table of measured configurations for the cheapest that meets the QoS
target at the load that was measured, and count how many of them a planner looks up.

FILE is JSON of the form {"4, 0, 1": [2.25, 99.24], ...}: the counts of --types in
their order, the price in $/hr, and the percent of queries within QoS. "published"
stands for the tables of RIBBON's authors, for --model mtwnd or dien.

Planners:
  ribbon   looks up the configurations that Bayesian optimisation proposes; with
           --plain it is the search as the paper published it
  twin     looks up the configurations that a quicker simulation proposes, and
           learns the error of that simulation; needs the table's --model and the
           --samples behind it

--runs repeats the search, and reports how many evaluations it needs to find the
best configuration of the table.`,
		Example: `  muster plan table published --model mtwnd --runs 30
  muster plan table measured.json --types g4dn.xlarge,c5.2xlarge,r5n.large`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.openCheckedTable(cmd, args[0])
			if err != nil {
				return misuse.Wrap(err)
			}
			return o.run(cmd, p)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.sim.models, "model", nil,
		"model that a published table is of, and with --planner twin any table")
	o.addLimits(flags)
	flags.Lookup("types").Usage = "instance types, in the order of the table's counts"
	o.addTarget(flags)
	flags.StringVar(&o.planner, "planner", ribbonPlanner,
		"planner: "+ribbonPlanner+" or "+twinPlanner)
	o.addPlain(flags)
	flags.IntVar(&o.runs, "runs", 1,
		"how often to repeat the search, each time with the next seed")
	flags.StringVar(&o.sim.samples, "samples", "",
		"with --planner twin: CSV file of the measured latencies behind the table, or "+
			"\"published\" (default for a published table)")
	o.sim.addSeeds(flags)
	return cmd
}

// openCheckedTable makes the problem of the table at path, if the flags have no fault.
func (o *planOptions) openCheckedTable(cmd *cobra.Command, path string) (*plancmd.Problem, error) {
	if err := cmp.Or(o.checkGoal(cmd), o.checkSearch()); err != nil {
		return nil, err
	}
	if o.runs < 1 {
		return nil, fmt.Errorf("runs: %d, want at least 1", o.runs)
	}
	return o.openTable(path)
}

// openTable makes the problem of a table: the least cost of the load that was measured. path is a
// file or published.Name.
func (o *planOptions) openTable(path string) (*plancmd.Problem, error) {
	open := func() (io.ReadCloser, error) { return os.Open(path) }
	isPublished := path == published.Name
	if isPublished {
		if err := o.publishedTable(); err != nil {
			return nil, err
		}
		path = o.sim.models[0] + ".json"
		open = func() (io.ReadCloser, error) { return published.Files(published.RIBBON).Open(path) }
	}
	if len(o.sim.models) > 0 && !isPublished && o.planner != twinPlanner {
		return nil, errors.New("model: a table is of one model; omit --model")
	}
	if len(o.types) == 0 {
		return nil, errors.New("types: give --types in the order of the table's counts")
	}
	catalogue, err := readCatalogue(o.catalogue)
	if err != nil {
		return nil, err
	}
	types := make([]profiles.InstanceType, len(o.types))
	for i, t := range o.types {
		types[i] = profiles.InstanceType(t)
	}
	f, err := open()
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	defer f.Close()
	table, err := plan.ReadTable(path, f, types, catalogue)
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	p := table.Problem(o.target / 100)
	if o.budget != 0 {
		p.Budget = o.budget
	}
	limits := make([]int, len(p.Types))
	for i, t := range p.Types {
		limits[i] = t.Max
	}
	if err := plancmd.SetLimits(p, o.limits); err != nil {
		return nil, err
	}
	for i := range p.Types {
		p.Types[i].Max = min(p.Types[i].Max, limits[i]) // the table has no larger counts
	}
	opened := &plancmd.Problem{
		Problem: p, Names: o.sim.models, Percent: o.target,
		Evaluator: table, Described: "looked up", Source: path,
	}
	for _, t := range table.Priced() {
		opened.Source += fmt.Sprintf(
			" (price of %s from the table, as the catalogue has none)", t)
	}
	if o.planner == twinPlanner {
		if err := o.openTableTwin(opened); err != nil {
			return nil, err
		}
	}
	return opened, p.Validate()
}

// publishedTable checks --model and --types for a published table, and sets the types and samples
// that the flags do not give.
func (o *planOptions) publishedTable() error {
	if len(o.sim.models) != 1 {
		return errors.New("model: give that of a published table, --model mtwnd or --model dien")
	}
	_, types, err := sim.RIBBONTable(o.sim.models[0])
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if len(o.types) != 0 && !slices.Equal(o.types, types) {
		return fmt.Errorf("types: the table of %s has %s in this order; omit --types",
			o.sim.models[0], strings.Join(types, ","))
	}
	o.types = types
	if o.sim.samples == "" {
		o.sim.samples = published.Name
	}
	return nil
}

// openTableTwin sets p.Twin to a simulation of the load behind a published table.
func (o *planOptions) openTableTwin(p *plancmd.Problem) error {
	if len(o.sim.models) != 1 || o.sim.samples == "" {
		return errors.New("twin: give the table's --model and the --samples behind it")
	}
	model := o.sim.models[0]
	load, _, err := sim.RIBBONTable(model)
	if err != nil {
		return fmt.Errorf("twin: %w", err)
	}
	load.Seeds = o.sim.seeds
	samples, err := sim.OpenSamples(o.sim.samples, published.RIBBON)
	if err != nil {
		return err
	}
	p.Twin, err = sim.NewFCFS(load, samples, model, o.types, nil)
	p.TwinRuns = load.Seeds
	p.Source += ", proposed by " + samples.Name()
	return err
}
