package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/cmd/muster/internal/load"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/placing"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/cmd/muster/internal/variants"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/figures"
	"github.com/muster-serve/muster/sim/fleet"
	simreport "github.com/muster-serve/muster/sim/report"
)

// simOptions are the flags that `muster sim`, `muster sim compare` and `muster plan` share: the
// models, the load and the conditions of the simulation.
type simOptions struct {
	models       []string // NAME or NAME=SHARE
	families     []string // as variants.Parse reads them
	samples      string   // path, published.Name, or "" for the shipped profiles
	batch        string
	arrivals     string
	queries      int // in each run
	seeds        int // number of runs
	seed         uint64
	qosMS        float64 // 0: the models' own
	latencyNoise float64 // relative standard deviation
	prediction   float64 // relative standard deviation
	rttMS        float64
	jitterMS     float64
	deadlineMS   float64
	rejectLate   bool
	split        bool
	merge        string
	gateways     int
	gossipMS     float64
	probes       int
	json         bool
}

// addModels adds the models that queries are for.
func (o *simOptions) addModels(flags *pflag.FlagSet) {
	flags.StringArrayVar(&o.models, "model", nil,
		"model that queries are for, as NAME or NAME=SHARE of the queries; repeat it for several")
}

// addFamilies adds the families that queries are for.
func (o *simOptions) addFamilies(flags *pflag.FlagSet) {
	flags.StringArrayVar(&o.families, "family", nil,
		"family of models that queries are for, as NAME=VARIANT:ACCURACY,VARIANT:ACCURACY@SHARE "+
			"(see above); repeat it for several")
}

// add adds the load, the runs and the conditions of a simulation.
func (o *simOptions) add(flags *pflag.FlagSet) {
	o.addLoad(flags, fileOfArrivals)
	o.addRuns(flags)
	o.addConditions(flags)
}

// fileOfArrivals is how queries may arrive besides by a process.
const fileOfArrivals = ", or a CSV file with the columns arrival_ms, model, batch_size"

// addLoad adds the models' latencies and targets, and the load; also is as of addArrivals.
func (o *simOptions) addLoad(flags *pflag.FlagSet, also string) {
	flags.StringVar(&o.samples, "samples", "",
		"CSV file of measured latencies (model,instance_type,batch_size,sample_ms), which may be "+
			"gzipped, or \"published\" for those of the papers (default: the shipped profiles)")
	flags.StringVar(&o.batch, "batch", "trace",
		"batch sizes: trace, ribbon, gaussian:MEAN,SD, fixed:N, or a CSV file")
	o.addArrivals(flags, also)
	flags.Float64Var(&o.qosMS, "qos-ms", 0, "QoS target in ms, instead of the models' own")
}

// addArrivals adds how queries arrive; also is how else they may.
func (o *simOptions) addArrivals(flags *pflag.FlagSet, also string) {
	flags.StringVar(&o.arrivals, "arrivals", "poisson",
		"arrivals: poisson, constant, gamma:SHAPE, artifact"+also)
}

// addRuns adds the runs, and how what they find is printed.
func (o *simOptions) addRuns(flags *pflag.FlagSet) {
	flags.IntVar(&o.queries, "queries", 20000, "queries that arrive in each run")
	o.addSeeds(flags)
}

// addSeeds adds how often a run is repeated, and how what was found is printed.
func (o *simOptions) addSeeds(flags *pflag.FlagSet) {
	flags.IntVar(&o.seeds, "seeds", 3, "number of runs, each with its own seed")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the first run; each run has the next one")
	flags.BoolVar(&o.json, "json", false, "print as JSON")
}

// addConditions adds what a simulation does with queries, and how exact it is.
func (o *simOptions) addConditions(flags *pflag.FlagSet) {
	flags.Float64Var(&o.latencyNoise, "latency-noise", 0,
		"relative standard deviation of random noise in latencies, e.g. 0.05")
	flags.Float64Var(&o.prediction, "prediction-noise", 0,
		"relative standard deviation of errors in the latencies that the policy predicts, e.g. "+
			"0.05")
	flags.Float64Var(&o.rttMS, "rtt-ms", 0, "network round trip in ms")
	flags.Float64Var(&o.jitterMS, "jitter-ms", 0,
		"how many ms longer the way of a query's inputs to a lane takes in the mean, at random")
	flags.Float64Var(&o.deadlineMS, "deadline-ms", 0,
		"drop a query that has waited for this many ms; 0: never")
	flags.BoolVar(&o.rejectLate, "reject-late", false,
		"reject queries that can no longer meet their QoS target")
	flags.BoolVar(&o.split, "split", true, "let the policy horizon run a query as several parts")
	flags.StringVar(&o.merge, "merge", string(names.MergeDeadline),
		fmt.Sprintf("how lanes run several waiting queries as one: %v", names.MergePolicies()))
	flags.IntVar(&o.gateways, "gateways", 4,
		"number of gateways; matters to the policies without a leader, and with faults")
	flags.Float64Var(&o.gossipMS, "gossip-ms", 1000,
		"ms between two reports of a lane's load to the gateways; 0: they always know it; for "+
			"the policy priced and faults")
	flags.IntVar(&o.probes, "probes", inquire.DefaultProbes,
		"lanes that a gateway asks at once when there is no leader; if none is in time it asks "+
			"as many again; -1: none; for the policy priced and faults")
}

const latenciesHelp = `Latencies come from --samples or, without it, from the shipped profiles. --batch
and --arrivals are as in "muster bench".`

const simInputHelp = latenciesHelp + ` A file of arrivals also gives the batch
sizes, and its times are scaled so that the mean rate is --rate.`

const familyHelp = `--family gives a family, of which each variant may answer a query, with their
accuracies and the family's share of the queries. A variant whose latencies are not
known is given as VARIANT:ACCURACY:MODEL*FACTOR: it takes FACTOR times as long as MODEL.`

func newSimCommand() *cobra.Command {
	var o simOptions
	var pool, policy, phases, logFile, recordFile string
	var rate float64
	var threshold int
	var find bool
	var faults, holds []string
	var bind string
	var placed placing.Flags
	configure := func(cmd *cobra.Command) (*sim.Config, *sim.Source, error) {
		if pool == "" {
			return nil, nil, errors.New("pool: give --pool TYPE=COUNT,TYPE=COUNT")
		}
		p, err := sim.ParsePool(pool)
		if err != nil {
			return nil, nil, err
		}
		cfg, source, err := o.config(p.Types())
		if err != nil {
			return nil, nil, err
		}
		cfg.Pool, cfg.Policy, cfg.Threshold, cfg.Bind = p, policy, threshold, bind
		for _, text := range holds {
			h, err := variants.ParseHolding(text)
			if err != nil {
				return nil, nil, err
			}
			cfg.Holds = append(cfg.Holds, h)
		}
		if cfg.Faults, err = readFaults(faults); err != nil {
			return nil, nil, err
		}
		if phases != "" {
			if load.IsFile(o.arrivals) {
				return nil, nil, errors.New(
					"load: the arrivals file sets how the load changes; omit --load")
			}
			parsed, err := sim.ParseLoad(phases)
			if err != nil {
				return nil, nil, err
			}
			cfg.Stream = sim.StreamOf(o.arrivals, parsed...)
		}
		switch {
		case cmd.Flags().Changed("rate"):
			cfg.Rate = rate
		case find && cfg.Rate == 0:
			cfg.Rate = 1 // the search sets it
		case cfg.Rate == 0:
			return nil, nil, errors.New(
				"rate: give --rate, or --find-throughput to search for one")
		}
		if o.seeds > 1 && (logFile != "" || recordFile != "") {
			return nil, nil, fmt.Errorf(
				"log and record are of one run, and there are %d; give --seeds 1", o.seeds)
		}
		if err := placed.Apply(cfg, o.seeds); err != nil {
			return nil, nil, err
		}
		return cfg, source, cfg.Validate()
	}
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a fleet with a pool of instances and a policy",
		Long: `Simulate a fleet in virtual time. The code that distributes the queries is the same
as in production.

` + simInputHelp + `

Policies: ` + strings.Join(sim.Policies(), ", ") + `.

--find-throughput searches for the allowable throughput: the highest arrival rate
at which 99 % of the queries still meet their QoS target.

` + familyHelp + `
All instances hold all variants, but for those of --hold. With --bind drawn a query's
variant is drawn in proportion to the fluid limits of the instances that hold each,
of whose time the variants that they hold have equal parts.

` + placing.Help + `

--fault makes something fail. The report then says what happened to the queries of
the two seconds before and after. A fault is
` + fleet.Help + `
A file of faults has one on each line; the text after a # is a comment.

With faults the whole fleet is simulated: agents elect a leader, and gateways decide
alone while no leader answers. All agents rank alike, so the last by name leads.`,
		Example: `  muster sim --model rm2 --pool g4dn.xlarge=1,r5n.large=13 --rate 120
  muster sim --model rm2 --pool g4dn.xlarge=1,r5n.large=13 --policy kairos --find-throughput --json
  muster sim --model ncf=3 --model wnd --pool g4dn.xlarge=2,c5n.2xlarge=3 --rate 900 --load 10s:1,5s:1.2
  muster sim --model rm2 --pool g4dn.xlarge=4 --rate 50 --seeds 1 --log queries.csv --record run.txt
  muster sim replay run.txt
  muster sim --family ctr=wnd:1,wnd-int8:.985:wnd*.4 --family feed=dien:1,dien-s:.97:dien*.5@2 \
    --pool g4dn.xlarge=4,r5n.large=6 --hold g4dn.xlarge=2:wnd,dien --rate 900
  muster sim --family ctr=wnd:1,wnd-int8:.985:wnd*.4 --family feed=dien:1,dien-s:.97:dien*.5 \
    --pool g4dn.xlarge=4,r5n.large=6 --place --rate 900 --queries 200000 --swing 2m:.5
  muster sim --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 --rtt-ms 1 \
    --fault kill-leader@10s --fault freeze-leader@15s+3s
  muster sim --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 \
    --fault cut-r5n.large-3@5s+2s --fault delay@10s+1s:20ms
  muster sim --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 --fault faults.txt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer placed.Close()
			cfg, source, err := configure(cmd)
			if err != nil {
				return misuse.Of(err)
			}
			if find {
				return o.findThroughput(cmd, cfg, source)
			}
			return o.simulate(cmd, cfg, source, logFile, recordFile)
		},
	}
	flags := cmd.Flags()
	o.addModels(flags)
	o.addFamilies(flags)
	flags.StringArrayVar(&holds, "hold", nil,
		"instances that hold some models only, as TYPE=COUNT:MODEL,MODEL; repeat it for several")
	flags.StringVar(&bind, "bind", sim.BindByMatcher,
		"how a query for a family is bound to a variant: matcher, when it starts, or drawn, when "+
			"it "+
			"arrives")
	flags.StringVar(&pool, "pool", "", "instances, as TYPE=COUNT,TYPE=COUNT")
	flags.StringVar(&policy, "policy", "",
		"how queries are distributed (default "+sim.DefaultPolicy+")")
	flags.Float64Var(&rate, "rate", 0, "queries a second over all models")
	flags.BoolVar(&find, "find-throughput", false, "search for the allowable throughput")
	flags.IntVar(&threshold, "threshold", 0,
		"batch size above which the policy drs uses the base type; 0: search for the best")
	flags.StringVar(&phases, "load", "",
		"factors of the rate over time, as DURATION:FACTOR,DURATION:FACTOR; the list repeats")
	flags.StringVar(&logFile, "log", "", "write each query's outcome to a CSV file")
	flags.StringVar(&recordFile, "record", "",
		"write the leader's events and decisions to a file, for replay")
	flags.StringArrayVar(&faults, "fault", nil,
		"a fault, as VERB-TARGET@TIME+DURATION:AMOUNT (see above), or a file with one on each "+
			"line; repeat it for several")
	o.add(flags)
	placed.Add(flags)
	cmd.MarkFlagsMutuallyExclusive("place", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("rate", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("fault", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("log", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("record", "find-throughput")
	cmd.AddCommand(newSimCompareCommand(), newSimReplayCommand())
	return cmd
}

// config makes the configuration of models and load that the flags describe, with latencies on the
// given types. The caller sets the pool and the policy.
func (o *simOptions) config(instanceTypes []string) (*sim.Config, *sim.Source, error) {
	source, err := sim.OpenSource(o.samples)
	if err != nil {
		return nil, nil, err
	}
	cfg, qosTarget, err := o.base()
	if err != nil {
		return nil, nil, err
	}
	var trace *workload.TraceFile
	var sizes *workload.BatchSizes
	if load.IsFile(o.arrivals) {
		if trace, err = workload.OpenTraceFile(o.arrivals); err != nil {
			return nil, nil, err
		}
		cfg.Stream, cfg.Rate = sim.StreamOfTrace(trace), trace.Rate()
		cfg.Queries = min(cfg.Queries, trace.Len())
	} else {
		// The rate is not known yet; 1 serves to check the syntax.
		if _, err := workload.ParseArrivals(o.arrivals, 1); err != nil {
			return nil, nil, fmt.Errorf(
				"%w, or a CSV file with the columns arrival_ms, model, batch_size", err)
		}
		if sizes, err = workload.ParseBatchSizes(o.batch); err != nil {
			return nil, nil, err
		}
	}
	models := o.models
	if len(models) == 0 && len(o.families) == 0 && trace != nil {
		models = trace.Models()
	}
	if len(models) == 0 && len(o.families) == 0 {
		return nil, nil, fmt.Errorf("model: give --model NAME at least once; %s has: %s",
			source, strings.Join(source.Models(), ", "))
	}
	for _, text := range models {
		name, share, err := load.ParseShare(text)
		if err != nil {
			return nil, nil, err
		}
		if slices.ContainsFunc(cfg.Models, func(m sim.Model) bool { return m.Name == name }) {
			return nil, nil, fmt.Errorf("model: %q is given twice", name)
		}
		if trace != nil {
			if sizes = trace.BatchSizes(name); sizes == nil {
				return nil, nil, fmt.Errorf(
					"arrivals: %s has no queries for model %q, only for: %s", o.arrivals, name,
					strings.Join(trace.Models(), ", "))
			}
		}
		m, err := source.Model(name, instanceTypes, sizes, qosTarget)
		if err != nil {
			return nil, nil, err
		}
		m.Weight = share
		cfg.Models = append(cfg.Models, m)
	}
	for _, text := range o.families {
		f, err := variants.Parse(text)
		if err != nil {
			return nil, nil, err
		}
		if trace != nil {
			if sizes = trace.BatchSizes(f.Name); sizes == nil {
				return nil, nil, fmt.Errorf(
					"arrivals: %s has no queries for family %q, only for: %s",
					o.arrivals, f.Name, strings.Join(trace.Models(), ", "))
			}
		}
		m, err := f.Model(func(name string) (sim.Model, error) {
			return source.Model(name, instanceTypes, sizes, qosTarget)
		})
		if err != nil {
			return nil, nil, err
		}
		cfg.Models = append(cfg.Models, m)
	}
	for i := range cfg.Models {
		cfg.Models[i].RejectLate, cfg.Models[i].Splits = o.rejectLate, o.split
	}
	return cfg, source, nil
}

// base makes the configuration that the flags describe, without models. A qosTarget of 0 means that
// each model has its own.
func (o *simOptions) base() (cfg *sim.Config, qosTarget time.Duration, err error) {
	ms := func(flag string, x float64) time.Duration {
		if err == nil && !(x >= 0 && x <= 3.6e6) {
			err = fmt.Errorf("%s: %v, want 0 to an hour", flag, x)
		}
		return time.Duration(x * float64(time.Millisecond))
	}
	cfg = &sim.Config{
		Queries:         o.queries,
		Seed:            o.seed,
		LatencyNoise:    o.latencyNoise,
		PredictionNoise: o.prediction,
		RTT:             ms("rtt-ms", o.rttMS),
		Jitter:          ms("jitter-ms", o.jitterMS),
		Merge:           names.MergePolicy(o.merge),
		Deadline:        ms("deadline-ms", o.deadlineMS),
		Gateways:        o.gateways,
		GossipDelay:     ms("gossip-ms", o.gossipMS),
		Probes:          o.probes,
		Stream:          sim.StreamOf(o.arrivals),
	}
	qosTarget = ms("qos-ms", o.qosMS)
	return cfg, qosTarget, cmp.Or(err, sim.CheckSeeds(o.seeds))
}

// validate returns what is wrong with cfg, of which the search for a pool of the types sets pool
// and rate.
func validate(cfg sim.Config, types []string) error {
	cfg.Pool, cfg.Rate = nil, 1
	for _, t := range types {
		cfg.Pool = append(cfg.Pool, sim.Instances{Type: t, Count: 1})
	}
	return cfg.Validate()
}

// simulate runs o.seeds simulations and prints the report. It writes each query's outcome to
// logFile and the policy's events and decisions to recordFile, where these are not "".
func (o *simOptions) simulate(cmd *cobra.Command, cfg *sim.Config, source *sim.Source, logFile,
	recordFile string) error {
	started := time.Now()
	cfg.Clock = func() time.Duration { return time.Since(started) }
	run := func(log, record io.Writer) (report *sim.Report, err error) {
		cfg.Log, cfg.Record = log, record
		line := terminal.NewStatusLine(cmd.ErrOrStderr())
		defer line.Done()
		return sim.RunSeeds(cmd.Context(), cfg, o.seeds, func(arrived int) {
			line.Show("%d of %d queries", arrived, o.seeds*cfg.Queries)
		})
	}
	var report *sim.Report
	err := withFile(logFile, func(log io.Writer) error {
		return withFile(recordFile, func(record io.Writer) (err error) {
			report, err = run(log, record)
			return err
		})
	})
	return o.print(cmd, report, source, err)
}

// readFaults reads the values of --fault. A value that is the path of a file stands for the faults
// in it.
func readFaults(texts []string) (faults []fleet.Fault, err error) {
	for _, text := range texts {
		if !load.IsFile(text) {
			f, err := fleet.ParseFault(text)
			if err != nil {
				return nil, fmt.Errorf("%w; or give a file with one fault on each line", err)
			}
			faults = append(faults, f)
			continue
		}
		f, err := os.Open(text)
		if err != nil {
			return nil, fmt.Errorf("faults: %w", err)
		}
		read, err := fleet.ReadFaults(text, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		faults = append(faults, read...)
	}
	return faults, nil
}

// withFile calls do with a writer of the file at path, which appears when do succeeds. If path is
// "" it calls do with nil.
func withFile(path string, do func(io.Writer) error) error {
	if path == "" {
		return do(nil)
	}
	return writeFile(path, do)
}

// findThroughput searches for the allowable throughput with each seed and prints the report.
func (o *simOptions) findThroughput(cmd *cobra.Command, cfg *sim.Config, source *sim.Source) error {
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	n := 0
	report, err := sim.ReportThroughput(cmd.Context(), cfg, o.seeds, func() {
		n++
		line.Show("%d of %d seeds", n, o.seeds)
	})
	line.Done()
	return o.print(cmd, report, source, err)
}

// print prints the report, which is nil or of what was found by then if there is an error,
// and returns the error.
func (o *simOptions) print(cmd *cobra.Command, report *sim.Report, source *sim.Source,
	err error) error {
	if report == nil {
		return err
	}
	report.Source = source.String()
	if o.json {
		return errors.Join(err, terminal.PrintJSON(cmd.OutOrStdout(), report))
	}
	return errors.Join(err, simreport.Text(cmd.OutOrStdout(), report))
}

func newSimCompareCommand() *cobra.Command {
	var o simOptions
	var policies, types []string
	var budget float64
	var pool, catalogue, plotFile string
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare policies, each on its own best pool within a budget",
		Long: `Compare the allowable throughput of policies. Each policy gets the pool within the
budget that is best for it. The baseline is the best homogeneous pool: instances of
the base type only, with its throughput scaled to the whole budget. A bar chart is
drawn to a PNG or SVG file. For all models this takes minutes.

` + simInputHelp,
		Example: `  muster sim compare --model rm2 --budget 2.5
  muster sim compare --model all --budget 2.5 --samples published --plot all.png
  muster sim compare --model wnd --budget 2.5 --policies horizon,kairos --pool g4dn.xlarge=2,c5n.2xlarge=3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPicture(plotFile); err != nil {
				return misuse.Of(err)
			}
			if !(budget > 0) {
				return misuse.Errorf("budget: %v $/hr, want above 0", budget)
			}
			prices, err := readPrices(catalogue, types)
			if err != nil {
				return misuse.Of(err)
			}
			var given sim.Pool
			if pool != "" {
				if given, err = sim.ParsePool(pool); err != nil {
					return misuse.Of(err)
				}
			}
			return o.compare(cmd, policies, prices, budget, given, plotFile)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.models, "model", nil,
		"model to compare the policies on, or all; repeat it for several, compared one by one")
	flags.Float64Var(&budget, "budget", 2.5, "$/hr that a pool may cost")
	lists.Var(flags, &policies, "policies",
		[]string{
			"horizon", "kairos", "fcfs", "drs", "clockwork-earliest", "clockwork-cheapest",
			"oracle",
		}, "policies to compare")
	lists.Var(flags, &types, "types", sim.PaperTypes(), "instance types that a pool may have")
	flags.StringVar(&pool, "pool", "",
		"pool that all policies use, as TYPE=COUNT,TYPE=COUNT, instead of each one's best")
	flags.StringVar(&catalogue, "catalogue", "",
		"YAML file with more instance types and prices than the built-in ones")
	flags.StringVar(&plotFile, "plot", "compare.png",
		"PNG or SVG file to draw the bar chart to; empty: draw none")
	o.add(flags)
	return cmd
}

// readCatalogue returns the built-in catalogue, extended by the file unless that is "".
func readCatalogue(file string) (*profiles.Catalogue, error) {
	if file == "" {
		return profiles.DefaultCatalogue(), nil
	}
	return profiles.DefaultCatalogue().ExtendFile(file)
}

// readPrices looks up the types' prices in the catalogue that readCatalogue returns.
func readPrices(file string, types []string) ([]sim.Price, error) {
	catalogue, err := readCatalogue(file)
	if err != nil {
		return nil, err
	}
	return sim.Prices(catalogue, types)
}

// compare compares the policies on each model and prints each comparison when it is complete. A nil
// pool means each policy's best one.
func (o *simOptions) compare(cmd *cobra.Command, policies []string, prices []sim.Price,
	budget float64, pool sim.Pool, plotFile string) error {
	if load.IsFile(o.arrivals) {
		return misuse.Errorf("arrivals: a comparison varies the rate, so it takes no file; give " +
			"poisson, constant, gamma:SHAPE or artifact")
	}
	models := o.models
	if slices.Equal(models, []string{"all"}) {
		source, err := sim.OpenSource(o.samples)
		if err != nil {
			return misuse.Of(err)
		}
		models = source.Models()
	}
	if len(models) == 0 {
		models = []string{""} // config returns an error that lists the models
	}
	var all []*sim.Comparison
	for _, model := range models {
		one := *o
		if one.models = nil; model != "" {
			one.models = []string{model}
		}
		types := make([]string, len(prices))
		for i, p := range prices {
			types[i] = p.Type
		}
		cfg, source, err := one.config(types)
		if err != nil {
			return misuse.Of(err)
		}
		for _, policy := range policies {
			checked := *cfg
			checked.Policy = policy
			if err := validate(checked, types); err != nil {
				return misuse.Of(err)
			}
		}
		line := terminal.NewStatusLine(cmd.ErrOrStderr())
		c, err := sim.Compare(cmd.Context(), cfg, policies, prices, budget, pool, o.seeds,
			func(policy string, done, of int) {
				line.Show("%s, %s: %d of %d pools", model, policy, done, of)
			})
		line.Done()
		if err != nil && o.json && len(all) > 0 && cmd.Context().Err() != nil {
			return errors.Join(err, terminal.PrintJSON(cmd.OutOrStdout(), all))
		}
		if err != nil {
			return err
		}
		c.Source = source.String()
		if !o.json {
			if err := c.WriteText(cmd.OutOrStdout()); err != nil {
				return err
			}
		}
		all = append(all, c)
	}
	if o.json {
		if err := terminal.PrintJSON(cmd.OutOrStdout(), all); err != nil {
			return err
		}
	}
	if plotFile == "" {
		return nil
	}
	if err := writePicture(plotFile, func(w io.Writer, format string) error {
		return figures.DrawComparisons(w, format, all)
	}); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "bars drawn to %s\n", plotFile)
	return nil
}

func newSimReplayCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Replay recorded events and check that the decisions are the same",
		Long: `Replay the events of a recording, made with "muster sim --record" or
"muster agent --record", and check that the leader decides the same, byte for byte.
The first line that differs is an error. Another version of Muster may decide
otherwise: its recordings name the version of what decided, and where they differ
the output says so, without an error.`,
		Example: `  muster sim replay run.txt`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("replay: %w", err)
			}
			defer f.Close()
			r, err := leader.Replay(f)
			if err != nil {
				return fmt.Errorf("replay %s: %w", args[0], err)
			}
			if asJSON {
				return terminal.PrintJSON(cmd.OutOrStdout(), r)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: policy %s, %d events over %v, %d decisions, ",
				args[0], r.Policy, r.Events, r.Duration.Round(time.Millisecond), r.Decisions)
			if r.Difference == "" {
				fmt.Fprintln(cmd.OutOrStdout(), "all as recorded")
			} else {
				fmt.Fprintln(cmd.OutOrStdout(), "not all as recorded")
			}
			if r.Decider != leader.DeciderVersion {
				fmt.Fprintf(cmd.OutOrStdout(),
					"recorded by decider %d, this is decider %d: decisions may differ\n",
					r.Decider, leader.DeciderVersion)
			}
			if r.Difference != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "first difference: %s\n", r.Difference)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
