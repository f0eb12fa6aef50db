package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/figures"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/workload"
)

// simOptions are the flags that say what to simulate, those of `muster sim` and
// of `muster sim compare`.
type simOptions struct {
	models       []string // NAME or NAME=SHARE
	samples      string
	batch        string
	arrivals     string
	queries      int
	seeds        int
	seed         uint64
	qosMS        float64
	latencyNoise float64
	prediction   float64
	rttMS        float64
	deadlineMS   float64
	rejectLate   bool
	gateways     int
	gossipMS     float64
	probes       int
	json         bool
}

func (o *simOptions) add(flags *pflag.FlagSet) {
	flags.StringVar(&o.samples, "samples", "",
		"CSV file of measured latencies (model,instance_type,batch_size,sample_ms), gzipped or "+
			"not, or \"published\" for those of the papers; default: the shipped profiles")
	flags.StringVar(&o.batch, "batch", "trace",
		"batch sizes: trace, ribbon, gaussian:MEAN,SD, fixed:N, or a CSV file")
	flags.StringVar(&o.arrivals, "arrivals", "poisson",
		"arrivals: poisson, constant, gamma:SHAPE, artifact, or a CSV file with the columns "+
			"arrival_ms, model, batch_size")
	flags.IntVar(&o.queries, "queries", 20000, "queries that arrive in a run")
	flags.IntVar(&o.seeds, "seeds", 3, "runs, each with a seed of its own")
	flags.Uint64Var(&o.seed, "seed", 1, "the first seed")
	flags.Float64Var(&o.qosMS, "qos-ms", 0, "QoS target in ms, in place of the models' own")
	flags.Float64Var(&o.latencyNoise, "latency-noise", 0,
		"standard deviation of a noise in latencies that nobody can predict, e.g. 0.05")
	flags.Float64Var(&o.prediction, "prediction-noise", 0,
		"standard deviation of an error in the latencies that the policy knows, e.g. 0.05")
	flags.Float64Var(&o.rttMS, "rtt-ms", 0, "network round trip in ms")
	flags.Float64Var(&o.deadlineMS, "deadline-ms", 0,
		"drop a query that has waited so long; 0: never")
	flags.BoolVar(&o.rejectLate, "reject-late", false,
		"reject queries that can no longer be served in time")
	flags.IntVar(&o.gateways, "gateways", 4,
		"gateways: those that decide alone (policy priced), and all with --fault")
	flags.Float64Var(&o.gossipMS, "gossip-ms", 1000,
		"ms between a lane's news of its load, 0: always fresh (policy priced)")
	flags.IntVar(&o.probes, "probes", match.DefaultProbes,
		"lanes that a gateway asks at most before it asks as many again; -1: none (policy priced)")
	flags.BoolVar(&o.json, "json", false, "print JSON")
}

const simInputHelp = `Latencies come from --samples or, without it, from the profiles that are shipped.
Batch sizes and arrivals are those of "muster bench". With an arrivals file the
batch sizes are the file's, and its time is stretched to --rate.`

func newSimCommand() *cobra.Command {
	var o simOptions
	var pool, policy, load, logFile, recordFile string
	var rate float64
	var threshold int
	var find bool
	var faults []string
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a fleet: what a pool and a policy can do",
		Long: `Simulate a fleet in virtual time, with the very code that distributes queries
in production.

` + simInputHelp + `

Policies: ` + strings.Join(sim.Policies(), ", ") + `.

--find-throughput searches the allowable throughput: the highest arrival rate at
which 99 % of the queries still meet their QoS target.

--fault has something go wrong, and the report say what became of the queries of
the two seconds before and after. A fault, or each line of a file of faults (what
follows a # is a comment), is
` + fleet.Help + `
The whole fleet is simulated then: agents elect a leader, and gateways decide
alone while none answers. All agents rank alike, so the last by name leads.`,
		Example: `  muster sim --model rm2 --pool g4dn.xlarge=1,r5n.large=13 --rate 120
  muster sim --model rm2 --pool g4dn.xlarge=1,r5n.large=13 --policy kairos --find-throughput --json
  muster sim --model ncf=3 --model wnd --pool g4dn.xlarge=2,c5n.2xlarge=3 --rate 900 --load 10s:1,5s:1.2
  muster sim --model rm2 --pool g4dn.xlarge=4 --rate 50 --seeds 1 --log queries.csv --record run.txt
  muster sim replay run.txt
  muster sim --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 --rtt-ms 1 --fault kill-leader@10s --fault freeze-leader@15s+3s
  muster sim --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 --fault cut-r5n.large-3@5s+2s --fault delay@10s+1s:20ms
  muster sim --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 --fault faults.txt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pool == "" {
				return errors.New("pool: give --pool TYPE=COUNT,TYPE=COUNT")
			}
			p, err := sim.ParsePool(pool)
			if err != nil {
				return err
			}
			cfg, source, err := o.config(p.Types())
			if err != nil {
				return err
			}
			cfg.Pool, cfg.Policy, cfg.Threshold = p, policy, threshold
			if cfg.Faults, err = readFaults(faults); err != nil {
				return err
			}
			if load != "" {
				if isFile(o.arrivals) {
					return errors.New("load: the arrivals file says how the load changes; leave " +
						"--load away")
				}
				phases, err := sim.ParseLoad(load)
				if err != nil {
					return err
				}
				cfg.Stream = sim.StreamOf(o.arrivals, phases...)
			}
			if find {
				return o.findThroughput(cmd, cfg, source)
			}
			if cmd.Flags().Changed("rate") {
				cfg.Rate = rate
			} else if cfg.Rate == 0 {
				return errors.New("rate: give --rate, or --find-throughput to search one")
			}
			return o.simulate(cmd, cfg, source, logFile, recordFile)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.models, "model", nil,
		"model that is asked for, as NAME or NAME=SHARE of the queries; repeat it for several")
	flags.StringVar(&pool, "pool", "", "instances, as TYPE=COUNT,TYPE=COUNT")
	flags.StringVar(&policy, "policy", "",
		"how queries are distributed (default "+sim.DefaultPolicy+")")
	flags.Float64Var(&rate, "rate", 0, "queries a second over all models")
	flags.BoolVar(&find, "find-throughput", false, "search the allowable throughput")
	flags.IntVar(&threshold, "threshold", 0,
		"batch size above which drs sends to the base type; 0: the best, which is searched")
	flags.StringVar(&load, "load", "",
		"changes of the rate over time, as DURATION:FACTOR,DURATION:FACTOR, round and round")
	flags.StringVar(&logFile, "log", "", "write each query's outcome to a CSV file")
	flags.StringVar(&recordFile, "record", "",
		"write the leader's events and decisions to a file, for replay")
	flags.StringArrayVar(&faults, "fault", nil,
		"what goes wrong and when, as VERB-TARGET@TIME+DURATION:AMOUNT (see above), or a file "+
			"with one a line; repeat it for several")
	o.add(flags)
	cmd.MarkFlagsMutuallyExclusive("rate", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("fault", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("log", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("record", "find-throughput")
	cmd.AddCommand(newSimCompareCommand(), newSimReplayCommand())
	return cmd
}

// config is what the flags say of models and load; the pool and the policy are the caller's.
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
	if isFile(o.arrivals) {
		if trace, err = workload.OpenTraceFile(o.arrivals); err != nil {
			return nil, nil, err
		}
		cfg.Stream, cfg.Rate = sim.StreamOfTrace(trace), trace.Rate()
		cfg.Queries = min(cfg.Queries, trace.Len())
	} else {
		// Any rate will do to check the form.
		if _, err := workload.ParseArrivals(o.arrivals, 1); err != nil {
			return nil, nil, fmt.Errorf(
				"%w, or a CSV file with the columns arrival_ms, model, batch_size", err)
		}
		if sizes, err = workload.ParseBatchSizes(o.batch); err != nil {
			return nil, nil, err
		}
	}
	models := o.models
	if len(models) == 0 && trace != nil {
		models = trace.Models()
	}
	if len(models) == 0 {
		return nil, nil, fmt.Errorf("model: give --model NAME, once or several times; %s has: %s",
			source, strings.Join(source.Models(), ", "))
	}
	for _, text := range models {
		name, share, err := parseShare(text)
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
		m.Weight, m.RejectLate = share, o.rejectLate
		cfg.Models = append(cfg.Models, m)
	}
	return cfg, source, nil
}

// base is what the flags say but for the models; a QoS target of 0 is the models' own.
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
		Deadline:        ms("deadline-ms", o.deadlineMS),
		Gateways:        o.gateways,
		GossipDelay:     ms("gossip-ms", o.gossipMS),
		Probes:          o.probes,
		Stream:          sim.StreamOf(o.arrivals),
	}
	qosTarget = ms("qos-ms", o.qosMS)
	return cfg, qosTarget, err
}

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
	if err != nil {
		return err
	}
	return o.print(cmd, report, source)
}

// readFaults reads faults, each of which is one or a file of some.
func readFaults(texts []string) (faults []fleet.Fault, err error) {
	for _, text := range texts {
		if !isFile(text) {
			f, err := fleet.ParseFault(text)
			if err != nil {
				return nil, fmt.Errorf("%w; or give a file with one a line", err)
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

// withFile has do write a file, or nothing if there is no path.
func withFile(path string, do func(io.Writer) error) error {
	if path == "" {
		return do(nil)
	}
	return writeFile(path, do)
}

func (o *simOptions) findThroughput(cmd *cobra.Command, cfg *sim.Config, source *sim.Source) error {
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	n := 0
	report, err := sim.ReportThroughput(cmd.Context(), cfg, o.seeds, func() {
		n++
		line.Show("%d of %d seeds", n, o.seeds)
	})
	line.Done()
	if err != nil {
		return err
	}
	return o.print(cmd, report, source)
}

func (o *simOptions) print(cmd *cobra.Command, report *sim.Report, source *sim.Source) error {
	report.Source = source.String()
	if o.json {
		return printJSON(cmd.OutOrStdout(), report)
	}
	return report.WriteText(cmd.OutOrStdout())
}

func newSimCompareCommand() *cobra.Command {
	var o simOptions
	var policies, types []string
	var budget float64
	var pool, catalogue, plotFile string
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare policies, each on its own best pool within a budget",
		Long: `Compare what policies reach, each on the pool within the budget that is best for
it, with the best homogeneous pool (base instances only, scaled to the budget).
The bars are drawn to a PNG file. The search takes minutes for all models.

` + simInputHelp,
		Example: `  muster sim compare --model rm2 --budget 2.5
  muster sim compare --model all --budget 2.5 --samples published --plot all.png
  muster sim compare --model wnd --budget 2.5 --policies horizon,kairos --pool g4dn.xlarge=2,c5n.2xlarge=3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			prices, err := readPrices(catalogue, types)
			if err != nil {
				return err
			}
			var given sim.Pool
			if pool != "" {
				if given, err = sim.ParsePool(pool); err != nil {
					return err
				}
			}
			return o.compare(cmd, policies, prices, budget, given, plotFile)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.models, "model", nil,
		"model to compare on, or all; repeat it for several, each compared alone")
	flags.Float64Var(&budget, "budget", 2.5, "$/hr that a pool may cost")
	flags.StringSliceVar(&policies, "policies",
		[]string{
			"horizon", "kairos", "fcfs", "drs", "clockwork-earliest", "clockwork-cheapest",
			"oracle",
		}, "policies to compare")
	flags.StringSliceVar(&types, "types", sim.PaperTypes(), "instance types that a pool may have")
	flags.StringVar(&pool, "pool", "", "one pool for all policies, in place of each one's best")
	flags.StringVar(&catalogue, "catalogue", "",
		"YAML file of instance types and prices, beside those known")
	flags.StringVar(&plotFile, "plot", "compare.png", "draw the bars to this file; empty: do not")
	o.add(flags)
	return cmd
}

// readCatalogue is the catalogue, extended by a file if one is given.
func readCatalogue(file string) (*profiles.Catalogue, error) {
	if file == "" {
		return profiles.DefaultCatalogue(), nil
	}
	return profiles.DefaultCatalogue().ExtendFile(file)
}

// readPrices looks the types' prices up in the catalogue, extended by a file if one is given.
func readPrices(file string, types []string) ([]sim.Price, error) {
	catalogue, err := readCatalogue(file)
	if err != nil {
		return nil, err
	}
	return sim.Prices(catalogue, types)
}

func (o *simOptions) compare(cmd *cobra.Command, policies []string, prices []sim.Price,
	budget float64, pool sim.Pool, plotFile string) error {
	if isFile(o.arrivals) {
		return errors.New(
			"arrivals: a comparison draws its own; give poisson, constant, gamma:SHAPE or artifact")
	}
	models := o.models
	if slices.Equal(models, []string{"all"}) {
		source, err := sim.OpenSource(o.samples)
		if err != nil {
			return err
		}
		models = source.Models()
	}
	if len(models) == 0 {
		models = []string{""} // config says what there is
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
			return err
		}
		line := terminal.NewStatusLine(cmd.ErrOrStderr())
		c, err := sim.Compare(cmd.Context(), cfg, policies, prices, budget, pool, o.seeds,
			func(policy string, done, of int) {
				line.Show("%s, %s: %d of %d pools", model, policy, done, of)
			})
		line.Done()
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
		if err := printJSON(cmd.OutOrStdout(), all); err != nil {
			return err
		}
	}
	if plotFile == "" {
		return nil
	}
	if err := writeFile(plotFile,
		func(w io.Writer) error { return figures.DrawComparisons(w, all) }); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "bars drawn to %s\n", plotFile)
	return nil
}

func newSimReplayCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Feed a recording to the leader's code again and check every decision",
		Long: `Feed the events of a recording (made with "muster sim --record" or "muster agent --record") to the
leader's code again and check that it decides the same, byte for byte. The first line that
differs is an error.`,
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
				return printJSON(cmd.OutOrStdout(), r)
			}
			fmt.Fprintf(cmd.OutOrStdout(),
				"%s: policy %s, %d events over %v, %d decisions, all as recorded\n",
				args[0], r.Policy, r.Events, r.Duration.Round(time.Millisecond), r.Decisions)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
