package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/cmd/muster/internal/load"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/simcmd"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/cmd/muster/internal/variants"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
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
	from         string // a file of recorded queries; "" unless arrivals is one
	queries      int    // in each run
	seeds        int    // number of runs
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
	o.addLoad(flags)
	flags.StringVar(&o.from, "from", "", load.FromHelp)
	o.addRuns(flags)
	o.addConditions(flags)
}

// addLoad adds the models' latencies and targets, and the load.
func (o *simOptions) addLoad(flags *pflag.FlagSet) {
	flags.StringVar(&o.samples, "samples", "",
		"CSV file of measured latencies (model,instance_type,batch_size,sample_ms), which may be "+
			"gzipped, or \"published\" for those of the papers (default: the shipped profiles)")
	flags.StringVar(&o.batch, "batch", "trace", workload.BatchSizesHelp)
	o.addArrivals(flags)
	flags.Float64Var(&o.qosMS, "qos-ms", 0, "QoS target in ms, instead of the models' own")
}

// addArrivals adds how queries arrive.
func (o *simOptions) addArrivals(flags *pflag.FlagSet) {
	flags.StringVar(&o.arrivals, "arrivals", load.Process,
		"arrivals: poisson, constant, gamma:SHAPE or artifact")
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
		"mean of a random delay, in ms, of a query's inputs on the way to a lane")
	flags.Float64Var(&o.deadlineMS, "deadline-ms", 0,
		"drop a query that has waited for this many ms; 0: never")
	flags.BoolVar(&o.rejectLate, "reject-late", false,
		"reject queries that can no longer meet their QoS target")
	flags.BoolVar(&o.split, "split", true, "let the policy horizon run a query as several parts")
	flags.StringVar(&o.merge, "merge", string(names.MergeDeadline),
		"how lanes run several waiting queries as one: "+
			strings.Join(names.Strings(names.MergePolicies()), ", "))
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

const simInputHelp = latenciesHelp + ` --from FILE takes arrivals and batch sizes
from recorded queries, with times scaled so that the mean rate is --rate.`

const familyHelp = `--family gives a family, of which each variant may answer a query, with their
accuracies and the family's share of the queries. A variant whose latencies are not
known is given as VARIANT:ACCURACY:MODEL*FACTOR: it takes FACTOR times as long as MODEL.`

// simPoolOptions are the flags of the commands that simulate one pool.
type simPoolOptions struct {
	simOptions
	pool, policy string
	phases       string // as sim.ParseLoad reads them
	change       simcmd.Change
	holds        []string
	bind         string
	// Of commands that simulate one rate.
	rate                float64
	logFile, recordFile string // "": none
}

// addPool adds the pool, how it distributes queries, and how the load changes.
func (o *simPoolOptions) addPool(flags *pflag.FlagSet) {
	o.addModels(flags)
	flags.StringVar(&o.pool, "pool", "", "instances, as TYPE=COUNT,TYPE=COUNT")
	flags.StringVar(&o.policy, "policy", "",
		"how queries are distributed (default "+sim.DefaultPolicy+")")
	flags.StringVar(&o.phases, "load", "",
		"factors of the rate over time, as DURATION:FACTOR,DURATION:FACTOR; the list repeats")
	o.change.Add(flags)
	o.add(flags)
}

// addHoldings adds families, and which instances hold what.
func (o *simPoolOptions) addHoldings(flags *pflag.FlagSet) {
	o.addFamilies(flags)
	flags.StringArrayVar(&o.holds, "hold", nil,
		"instances that hold some models only, as TYPE=COUNT:MODEL,MODEL; repeat it for several")
	flags.StringVar(&o.bind, "bind", sim.BindByMatcher,
		"how a query for a family is bound to a variant: matcher, when it starts, or drawn, when "+
			"it arrives")
}

// addRate adds the flags of the rate, and of the files that record a run at it.
func (o *simPoolOptions) addRate(flags *pflag.FlagSet) {
	flags.Float64Var(&o.rate, "rate", 0, "queries a second over all models")
	flags.StringVar(&o.logFile, "log", "", "write each query's outcome to a CSV file")
	flags.StringVar(&o.recordFile, "record", "",
		"write the leader's events and decisions to a file, for replay")
}

// holdingsHelp says what the flags of addHoldings do.
const holdingsHelp = familyHelp + `
Every instance holds all variants, except the instances of --hold. With --bind drawn
each query gets a random variant, in proportion to the fluid limit of the instances
that hold it; an instance gives equal parts of its time to the variants it holds.`

func newSimCommand() *cobra.Command {
	var o simPoolOptions
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a fleet with a pool of instances and a policy",
		Long: `Simulate a fleet in virtual time at one rate. The code that distributes the queries
is the same as in production.

` + simInputHelp + `

Policies: ` + strings.Join(sim.Policies(), ", ") + `.

` + holdingsHelp + `

` + simcmd.ChangeHelp,
		Example: `  muster sim --model rm2 --pool g4dn.xlarge=1,r5n.large=13 --rate 120
  muster sim --model ncf=3 --model wnd --pool g4dn.xlarge=2,c5n.2xlarge=3 --rate 900 --load 10s:1,5s:1.2
  muster sim --model rm2 --pool g4dn.xlarge=4 --rate 50 --seeds 1 --log queries.csv --record run.txt
  muster sim --family ctr=wnd:1,wnd-int8:.985:wnd*.4 --family feed=dien:1,dien-s:.97:dien*.5@2 \
    --pool g4dn.xlarge=4,r5n.large=6 --hold g4dn.xlarge=2:wnd,dien --rate 900`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.simulateRate(cmd, func(*sim.Config) error { return nil })
		},
	}
	flags := cmd.Flags()
	o.addPool(flags)
	o.addHoldings(flags)
	o.addRate(flags)
	cmd.AddCommand(newSimThroughputCommand(), newSimFaultsCommand(), newSimPlaceCommand(),
		newSimCompareCommand(), newSimDayCommand(), newSimReplayCommand())
	return cmd
}

// open makes the configuration that the flags describe, but for the rate, which is 0 unless the
// arrivals have one.
func (o *simPoolOptions) open() (*sim.Config, *sim.Source, error) {
	if o.pool == "" {
		return nil, nil, errors.New("pool: give --pool TYPE=COUNT,TYPE=COUNT")
	}
	pool, err := sim.ParsePool(o.pool)
	if err != nil {
		return nil, nil, err
	}
	cfg, source, err := o.makeConfig(pool.Types())
	if err != nil {
		return nil, nil, err
	}
	cfg.Pool, cfg.Policy, cfg.Bind = pool, o.policy, o.bind
	for _, text := range o.holds {
		h, err := variants.ParseHolding(text)
		if err != nil {
			return nil, nil, err
		}
		cfg.Holds = append(cfg.Holds, h)
	}
	if o.phases != "" {
		if o.hasTrace() {
			return nil, nil, errors.New(
				"load: the recorded queries set how the load changes; omit --load")
		}
		parsed, err := sim.ParseLoad(o.phases)
		if err != nil {
			return nil, nil, err
		}
		cfg.Stream = sim.StreamOf(o.arrivals, parsed...)
	}
	return cfg, source, o.change.Apply(cfg)
}

// simulateRate simulates one rate and prints the report. more adds to the configuration what the
// command simulates besides.
func (o *simPoolOptions) simulateRate(cmd *cobra.Command, more func(*sim.Config) error) error {
	cfg, source, err := o.open()
	if err != nil {
		return misuse.Wrap(err)
	}
	if cmd.Flags().Changed("rate") {
		cfg.Rate = o.rate
	} else if cfg.Rate == 0 {
		return misuse.Errorf("rate: give --rate, or search for one with \"muster sim throughput\"")
	}
	if o.seeds > 1 && (o.logFile != "" || o.recordFile != "") {
		return misuse.Errorf("log and record take one run, not %d: give --seeds 1",
			o.seeds)
	}
	if err := more(cfg); err != nil {
		return misuse.Wrap(err)
	}
	if err := cfg.Validate(); err != nil {
		return misuse.Wrap(err)
	}
	return o.run(cmd, cfg, source, o.logFile, o.recordFile)
}

// hasTrace reports whether the queries are recorded ones.
func (o *simOptions) hasTrace() bool { return o.from != "" || load.IsFile(o.arrivals) }

// makeConfig makes the configuration of models and load that the flags describe, with latencies on
// the given types. The caller sets the pool and the policy.
func (o *simOptions) makeConfig(instanceTypes []string) (*sim.Config, *sim.Source, error) {
	source, err := sim.OpenSource(o.samples)
	if err != nil {
		return nil, nil, err
	}
	cfg, qosTarget, err := o.baseConfig()
	if err != nil {
		return nil, nil, err
	}
	path, err := load.TracePath(o.from, o.arrivals)
	if err != nil {
		return nil, nil, err
	}
	var trace *workload.QueryTrace
	var sizes *workload.BatchSizes
	if path != "" {
		if trace, err = load.OpenTrace(path, nil); err != nil {
			return nil, nil, err
		}
		cfg.Stream, cfg.Rate = sim.StreamOfTrace(trace), trace.Rate()
		cfg.Queries = min(cfg.Queries, trace.Len())
	} else {
		if err := load.CheckArrivals(o.arrivals); err != nil {
			return nil, nil, err
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
					"arrivals: %s has no queries for model %q, only for: %s", path, name,
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
					path, f.Name, strings.Join(trace.Models(), ", "))
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

// baseConfig makes the configuration that the flags describe, without models. A qosTarget of 0
// means that each model has its own.
func (o *simOptions) baseConfig() (cfg *sim.Config, qosTarget time.Duration, err error) {
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

// validate returns what is wrong with cfg. It does not check pool and rate, which the search for a
// pool of the types sets.
func validate(cfg sim.Config, types []string) error {
	cfg.Pool, cfg.Rate = nil, 1
	for _, t := range types {
		cfg.Pool = append(cfg.Pool, sim.Instances{Type: t, Count: 1})
	}
	return cfg.Validate()
}

// run runs o.seeds simulations and prints the report. It writes each query's outcome to
// logFile and the policy's events and decisions to recordFile, where these are not "".
func (o *simOptions) run(cmd *cobra.Command, cfg *sim.Config, source *sim.Source, logFile,
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

// withFile calls do with a writer of the file at path, which appears when do succeeds. If path is
// "" it calls do with nil.
func withFile(path string, do func(io.Writer) error) error {
	if path == "" {
		return do(nil)
	}
	return writeFile(path, do)
}

// print prints the report and returns the error. With an error the report is nil, or has what was
// found before the error.
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
