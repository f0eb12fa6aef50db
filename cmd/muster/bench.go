package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/sim/workload"
)

// benchOptions are the flags of `muster bench`. After check, duration is 0 where only the number of
// queries or a trace file ends the load.
type benchOptions struct {
	clientSettings
	models         []string // NAME or NAME=SHARE
	rate           float64  // queries a second over all models; 0 if not given
	duration       time.Duration
	queries        int // most queries to send; 0: no bound
	batch          string
	arrivals       string
	qosMS          float64       // 0: the models' own QoS targets
	timeout        time.Duration // of a query; 0: its model's deadline
	seed           uint64
	json           string // a path, - for standard output, or empty
	plot           string // a path, or empty
	findThroughput bool
}

func newBenchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Send a load of queries and measure whether agents meet the QoS targets",
		Long: `Send a load of queries to agents and measure whether the models meet their QoS
targets.

The load is an open loop: each query is sent at its arrival time, whether or not
earlier ones have been answered, and its latency counts from its arrival time.
The server tells which inputs, id bounds and QoS targets the models have; the
values of the inputs are random.

Batch sizes (--batch):
  trace               the production trace that KAIROS was evaluated with
  ribbon              the distribution behind RIBBON's published tables
  gaussian:MEAN,SD    truncated to 1..1000
  fixed:N
  FILE                CSV with the column batch_size and, optionally, weight
Arrivals (--arrivals):
  poisson, constant
  gamma:SHAPE         a SHAPE below 1 gives bursts, one above 1 gives arrivals more
                      regular than poisson
  artifact            whole milliseconds between queries, as in the simulators that
                      the papers' authors published
  FILE                CSV with the columns arrival_ms, model, batch_size; it sets
                      rate and batch sizes
--find-throughput searches for the allowable throughput: the highest rate at
which every model meets its QoS target. --duration then bounds the whole search.

After an interrupt (Ctrl-C) the command reports what it has measured so far.`,
		Example: `  muster bench --model wnd --rate 200
  muster bench --model ncf=3 --model wnd=1 --rate 400 --duration 60s --plot latency.png
  muster bench --model rm2 --find-throughput --json -
  muster bench --arrivals trace.csv`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return o.run(cmd)
		},
	}
	o.add(cmd.Flags())
	flags := cmd.Flags()
	flags.StringArrayVar(&o.models, "model", nil,
		"model to query, as NAME or NAME=SHARE of the queries; repeat it for several")
	flags.Float64Var(&o.rate, "rate", 0, "queries a second over all models")
	flags.DurationVar(&o.duration, "duration", 20*time.Second,
		"how long to send queries; with --find-throughput, how long to search (default 1m0s)")
	flags.IntVar(&o.queries, "queries", 0,
		"stop after this many queries; without --duration nothing else ends the load")
	flags.StringVar(&o.batch, "batch", "trace",
		"batch sizes: trace, ribbon, gaussian:MEAN,SD, fixed:N or a CSV file")
	flags.StringVar(&o.arrivals, "arrivals", "poisson",
		"arrivals: poisson, constant, gamma:SHAPE, artifact or a CSV file")
	flags.Float64Var(&o.qosMS, "qos-ms", 0, "QoS target in ms, instead of the models' own")
	flags.DurationVar(&o.timeout, "timeout", 0,
		"time after which a query has failed; 0 means the model's deadline")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of arrivals, batch sizes and inputs")
	flags.StringVar(&o.json, "json", "",
		"write the results as JSON to this file; with - to standard output, instead of the table")
	flags.StringVar(&o.plot, "plot", "", "draw the latencies to this PNG file")
	flags.BoolVar(&o.findThroughput, "find-throughput", false,
		"search for the allowable throughput")
	cmd.MarkFlagsMutuallyExclusive("rate", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("queries", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("plot", "find-throughput")
	return cmd
}

// check reports all faults of the flags at once and sets the duration, whose default depends on
// other flags.
func (o *benchOptions) check(cmd *cobra.Command) error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	given := cmd.Flags().Changed
	if given("duration") && o.duration <= 0 {
		fault("duration: %v, want more than 0", o.duration)
	}
	if given("queries") && o.queries <= 0 {
		fault("queries: %d, want more than 0", o.queries)
	}
	if given("qos-ms") && !(o.qosMS > 0 && o.qosMS <= 3.6e6) {
		fault("qos-ms: %v, want above 0 and at most an hour", o.qosMS)
	}
	if o.timeout < 0 {
		fault("timeout: %v, want 0 or more", o.timeout)
	}
	for flag, path := range map[string]string{"json": o.json, "plot": o.plot} {
		if path == "" || path == "-" && flag == "json" {
			continue
		}
		if info, err := os.Stat(filepath.Dir(path)); err != nil {
			fault("%s: %w", flag, err)
		} else if !info.IsDir() {
			fault("%s: %s is not a directory", flag, filepath.Dir(path))
		}
	}
	if !given("duration") {
		switch {
		case o.findThroughput:
			o.duration = time.Minute
		case given("queries") || isFile(o.arrivals):
			o.duration = 0 // the load ends with its last query
		}
	}
	return errors.Join(faults...)
}

// isFile reports whether there is something at path that is not a directory. Flags that take a name
// or a file use it to tell which one was given.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// run sends the load and prints the report. It blocks until the load has ended and its queries are
// answered or have failed. A run in which no query was answered is an error.
func (o *benchOptions) run(cmd *cobra.Command) error {
	c, err := o.open(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer c.Close()
	load, err := o.readLoad()
	if err != nil {
		return err
	}
	if err := load.prepare(cmd, c, o); err != nil {
		return err
	}
	if o.findThroughput {
		return o.search(cmd, c, load)
	}
	config := bench.Config{Duration: o.duration, MaxQueries: o.queries, Workload: load.workload}
	if config.Queries, err = load.queries(load.workload.RateQPS, o.seed); err != nil {
		return err
	}
	show, done := bench.NewProgress(cmd.ErrOrStderr())
	config.Progress = show
	report, err := bench.Run(cmd.Context(), c, load.models, config)
	done()
	if err != nil {
		return err
	}
	if err := o.write(cmd, report, report.WriteText); err != nil {
		return err
	}
	if o.plot != "" {
		if err := writeFile(o.plot, report.WritePlot); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "latencies drawn to %s\n", o.plot)
	}
	if !slices.ContainsFunc(report.Models,
		func(m bench.ModelReport) bool { return m.Answered > 0 }) {
		return errors.New("no query was answered")
	}
	return nil
}

// search finds the allowable throughput and prints it. Each rate that it tried is a line on
// standard error.
func (o *benchOptions) search(cmd *cobra.Command, c *client.Client, load *benchLoad) error {
	found, err := bench.FindThroughput(cmd.Context(), c, load.models, bench.Search{
		Queries:  load.queries,
		Workload: load.workload,
		Limit:    o.duration,
		Progress: func(p bench.Probe) { fmt.Fprintln(cmd.ErrOrStderr(), p) },
	})
	if err != nil {
		return err
	}
	return o.write(cmd, found, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, found)
		return err
	})
}

// write prints results as text, and writes them as JSON to the file of --json. With "--json -" it
// prints JSON instead of text.
func (o *benchOptions) write(cmd *cobra.Command, results any, text func(io.Writer) error) error {
	if o.json == "-" {
		return terminal.PrintJSON(cmd.OutOrStdout(), results)
	}
	if err := text(cmd.OutOrStdout()); err != nil || o.json == "" {
		return err
	}
	return writeFile(o.json, func(w io.Writer) error { return terminal.PrintJSON(w, results) })
}

// writeFile has write fill a file at path, which then replaces an older one atomically: after an
// error path is as it was before.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)),
		renameio.WithStaticPermissions(0o644))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err = write(f); err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, f.Cleanup()))
	}
	return nil
}

// A benchLoad is the load that the flags describe.
type benchLoad struct {
	trace    *workload.TraceFile // nil unless arrivals come from a file
	arrivals string
	sizes    *workload.BatchSizes
	loads    []workload.Load
	workload bench.Workload
	models   []*bench.Model // made by prepare
}

// readLoad checks the flags that describe the load and opens the files that they name. It does not
// contact the server.
func (o *benchOptions) readLoad() (*benchLoad, error) {
	l := &benchLoad{
		arrivals: o.arrivals, workload: bench.Workload{
			Arrivals: o.arrivals, BatchSizes: o.batch, RateQPS: o.rate, Seed: o.seed,
		},
	}
	for _, m := range o.models {
		name, share, err := parseShare(m)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(l.loads, func(o workload.Load) bool { return o.Model == name }) {
			return nil, fmt.Errorf("model: %q is given twice", name)
		}
		l.loads = append(l.loads, workload.Load{Model: name, Share: share})
	}
	var err error
	if isFile(o.arrivals) {
		return l, l.readTrace(o)
	}
	// The rate is not known yet; 1 serves to check the syntax.
	if _, err := workload.ParseArrivals(o.arrivals, 1); err != nil {
		return nil, fmt.Errorf("%w, or a CSV file with the columns arrival_ms, model, batch_size",
			err)
	}
	if !o.findThroughput {
		if o.rate == 0 {
			return nil, errors.New("rate: give --rate, or --find-throughput to search for one")
		}
		if _, err := workload.ParseArrivals(o.arrivals, o.rate); err != nil {
			return nil, err
		}
	}
	if len(l.loads) == 0 {
		return nil, errors.New("model: give --model NAME at least once")
	}
	l.sizes, err = workload.ParseBatchSizes(o.batch)
	return l, err
}

// parseShare reads NAME=SHARE, or NAME for a share of 1. Shares are weights: they need not add up
// to 1.
func parseShare(s string) (name string, share float64, err error) {
	name, text, given := strings.Cut(s, "=")
	share = 1
	if given {
		if share, err = strconv.ParseFloat(text, 64); err != nil || !(share > 0) ||
			math.IsInf(share, 0) {
			return "", 0, fmt.Errorf("model: %q: share %q, want a number above 0", s, text)
		}
	}
	if name == "" {
		return "", 0, fmt.Errorf("model: %q has no name, want NAME or NAME=SHARE", s)
	}
	return name, share, nil
}

// readTrace takes arrivals, models and batch sizes from the trace file that --arrivals names.
func (l *benchLoad) readTrace(o *benchOptions) error {
	if o.rate != 0 || o.findThroughput {
		return fmt.Errorf("arrivals: %s sets the rate; omit --rate and --find-throughput",
			o.arrivals)
	}
	trace, err := workload.OpenTraceFile(o.arrivals)
	if err != nil {
		return err
	}
	l.trace = trace
	l.workload.BatchSizes, l.workload.RateQPS = o.arrivals, trace.Rate()
	if len(l.loads) == 0 {
		for _, m := range trace.Models() {
			l.loads = append(l.loads, workload.Load{Model: m})
		}
	}
	for _, m := range trace.Models() {
		if !slices.ContainsFunc(l.loads, func(o workload.Load) bool { return o.Model == m }) {
			return fmt.Errorf("arrivals: %s has queries for model %q, which no --model names",
				o.arrivals, m)
		}
	}
	return nil
}

// prepare asks the server for the models' inputs and limits, and sets l.models. A batch size that a
// model does not accept is an error for a trace; a distribution is cut off at the largest one.
func (l *benchLoad) prepare(cmd *cobra.Command, c *client.Client, o *benchOptions) error {
	for i := range l.loads {
		name := l.loads[i].Model
		options := bench.ModelOptions{
			QoSTarget: time.Duration(o.qosMS * float64(time.Millisecond)),
			Timeout:   o.timeout,
			Seed:      o.seed,
		}
		if l.trace != nil {
			options.LargestBatchSize = max(l.trace.Largest(name), 1)
		} else {
			options.LargestBatchSize = l.sizes.Largest()
		}
		m, err := bench.NewModel(cmd.Context(), c, name, options)
		if err != nil {
			return err
		}
		if l.trace == nil {
			if l.loads[i].BatchSizes, err = l.sizes.AtMost(m.LargestBatchSize); err != nil {
				return fmt.Errorf("model %q: %w", name, err)
			}
		} else if most := m.LargestBatchSize; most < options.LargestBatchSize {
			return fmt.Errorf(
				"arrivals: %s has a query of batch size %d for model %q, which takes at most %d",
				o.arrivals, options.LargestBatchSize, name, most)
		}
		for _, note := range m.Notes {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", name, terminal.Plain(note))
		}
		l.models = append(l.models, m)
	}
	return nil
}

// queries returns the queries to send, in order of their arrival times, at rate queries a second.
// With a trace file both arguments are ignored.
func (l *benchLoad) queries(rate float64, seed uint64) (iter.Seq[workload.Query], error) {
	if l.trace != nil {
		return l.trace.Queries(), nil
	}
	a, err := workload.ParseArrivals(l.arrivals, rate)
	if err != nil {
		return nil, err
	}
	return workload.Queries(seed, a, l.loads...)
}
