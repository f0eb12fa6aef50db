package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/cmd/muster/internal/inputs"
	"github.com/muster-serve/muster/cmd/muster/internal/load"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/reference"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/profiles/workload"
)

// benchOptions are the flags of `muster bench`. After check, duration is 0 where only the number of
// queries or a trace file ends the load.
type benchOptions struct {
	clientSettings
	models         []string // NAME or NAME=SHARE
	inputs         []string // FILE or MODEL=FILE
	shapes         []string // INPUT:DIMxDIM
	rate           float64  // queries a second over all models; 0 if not given
	duration       time.Duration
	queries        int // most queries to send; 0: no bound
	batch          string
	arrivals       string
	from           string        // a file of recorded queries; "" unless arrivals is one
	logFile        string        // a path, or empty
	qosMS          float64       // 0: the models' own QoS targets
	timeout        time.Duration // of a query; 0: its model's deadline
	leastAccuracy  float64       // 0: any
	seed           uint64
	json           string // a path, - for standard output, or empty
	plot           string // a path, or empty
	findThroughput bool
	failBelow      float64 // percent of queries within QoS; 0: never fail for them
	verify         string  // a model repository, or empty
	wait           waitSetting
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
The server reports the inputs, id bounds and QoS targets of the models; the values
of the inputs are random.

Batch sizes (--batch):
  trace               the production trace that KAIROS was evaluated with
  ribbon              the distribution behind RIBBON's published tables
  mlperf              candidates a query in MLPerf's DLRM-v2: 100 to 700, mostly 200
  gaussian:MEAN,SD    truncated to 1..1000
  fixed:N
  FILE                CSV with the column batch_size and, optionally, weight
Inputs (--input) are random unless a file has them:
  FILE.npz            arrays of NumPy, one for each input; a query has consecutive rows
  FILE                JSON as the body of the REST API, one query on each line; each is
                      sent as it is, at random, so the file also sets the batch sizes
Arrivals (--arrivals):
  poisson, constant
  gamma:SHAPE         a SHAPE below 1 gives bursts, one above 1 gives arrivals more
                      regular than poisson
  artifact            whole milliseconds between queries, as in the simulators that
                      the papers' authors published
--from FILE sends recorded queries again, each when it is due after the first: JSON
lines or .npz with at_ms, model, rows and perhaps inputs, or CSV with the columns
arrival_ms, model, batch_size. --log FILE records what was sent, and what became of it.

--find-throughput searches for the allowable throughput: the highest rate at
which every model meets its QoS target. Each rate is tried with enough queries for a
result that is 95 % certain (299 for a target of 99 %), so slow models take long;
the first line says how long. --duration bounds the whole search.

--model may name a family of models. The effective accuracy, the mean accuracy of
the variants that answered, then stands beside the share within QoS.

--verify DIR runs the versions that are served, of the repository DIR, in this process,
by ONNX Runtime alone, and compares each answer with that of the version that gave it,
row by row. It works for models whose rows are independent. A wrong answer counts as
an error, and the command then fails.

After an interrupt (Ctrl-C) the command reports what it has measured so far, and
ends with status 130.`,
		Example: `  muster bench --model wnd --rate 200
  muster bench --model ncf=3 --model wnd=1 --rate 400 --duration 60s --plot latency.png
  muster bench --model rm2 --find-throughput --json -
  muster bench --from queries.jsonl --log outcomes.jsonl
  muster bench --model ncf --rate 100 --input queries.jsonl --fail-below 99`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return misuse.Wrap(err)
			}
			return o.run(cmd)
		},
	}
	o.addFlags(cmd)
	return cmd
}

// addFlags adds the flags of `muster bench`.
func (o *benchOptions) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.add(flags)
	flags.StringArrayVar(&o.models, "model", nil,
		"model or family to query, as NAME or NAME=SHARE of the queries; repeat it for several")
	flags.Float64Var(&o.rate, "rate", 0, "queries a second over all models")
	flags.DurationVar(&o.duration, "duration", 20*time.Second,
		"how long to send queries; with --find-throughput, how long to search at most (default "+
			"15 probes)")
	flags.IntVar(&o.queries, "queries", 0,
		"stop after this many queries; without --duration nothing else ends the load")
	flags.StringArrayVar(&o.inputs, "input", nil,
		"file with inputs, as FILE or MODEL=FILE: JSON queries or .npz; - for standard input")
	flags.StringArrayVar(&o.shapes, "shape", nil, inputs.ShapeHelp)
	flags.StringVar(&o.batch, "batch", "trace", workload.BatchSizesHelp)
	flags.StringVar(&o.arrivals, "arrivals", load.Process,
		"arrivals: poisson, constant, gamma:SHAPE or artifact")
	flags.StringVar(&o.from, "from", "", load.FromHelp)
	flags.Float64Var(&o.qosMS, "qos-ms", 0, "QoS target in ms, instead of the models' own")
	flags.DurationVar(&o.timeout, "timeout", 0,
		"time after which a query has failed; 0 means the model's deadline")
	flags.Float64Var(&o.leastAccuracy, "min-accuracy", 0,
		"minimum accuracy of the variants that answer for a family; 0 means any")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of arrivals, batch sizes and inputs")
	flags.StringVar(&o.json, "json", "",
		"write the results as JSON to this file; with - to standard output, instead of the table")
	flags.StringVar(&o.logFile, "log", "",
		"record each query's outcome and latency in this file, as JSON lines for --from")
	flags.StringVar(&o.plot, "plot", "", "draw the latencies to this PNG or SVG file")
	flags.BoolVar(&o.findThroughput, "find-throughput", false,
		"search for the allowable throughput")
	flags.Float64Var(&o.failBelow, "fail-below", 0,
		"end with status 1 if less than this percentage of a model's queries is within QoS")
	o.wait.add(flags, "the models are ready")
	cmd.MarkFlagsMutuallyExclusive("fail-below", "find-throughput")
	flags.StringVar(&o.verify, "verify", "",
		"model repository; compare the agents' answers with those of its models")
	cmd.MarkFlagsMutuallyExclusive("verify", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("rate", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("queries", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("plot", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("log", "find-throughput")
	cmd.MarkFlagsMutuallyExclusive("from", "arrivals")
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
	if given("qos-ms") && !(o.qosMS >= 0.001 && o.qosMS <= 3.6e6) {
		fault("qos-ms: %v, want at least 0.001 and at most an hour", o.qosMS)
	}
	if given("fail-below") && !(o.failBelow > 0 && o.failBelow <= 100) {
		fault("fail-below: %v, want percent above 0 and up to 100", o.failBelow)
	}
	if !(o.leastAccuracy >= 0 && o.leastAccuracy <= 1) {
		fault("min-accuracy: %v, want above 0 and at most 1, or 0 for any", o.leastAccuracy)
	}
	if o.timeout < 0 {
		fault("timeout: %v, want 0 or more", o.timeout)
	}
	for flag, path := range map[string]string{"json": o.json, "plot": o.plot, "log": o.logFile} {
		if path == "" || path == "-" && flag == "json" {
			continue
		}
		if info, err := os.Stat(filepath.Dir(path)); err != nil {
			fault("%s: %w", flag, err)
		} else if !info.IsDir() {
			fault("%s: %s is not a directory", flag, filepath.Dir(path))
		}
	}
	if err := checkPicture(o.plot); err != nil {
		faults = append(faults, err)
	}
	if !given("duration") {
		switch {
		case o.findThroughput:
			o.duration = 0 // as long as it needs
		case given("queries") || o.from != "" || load.IsFile(o.arrivals):
			o.duration = 0 // the load ends with its last query
		}
	}
	return errors.Join(faults...)
}

// load reads what the flags say about the load.
func (o *benchOptions) load(cmd *cobra.Command) (*load.Load, error) {
	options := load.Options{
		Models: o.models, Inputs: o.inputs, Shapes: o.shapes, Arrivals: o.arrivals, From: o.from,
		Rate: o.rate,
		Find: o.findThroughput, QoSMS: o.qosMS, Timeout: o.timeout, Seed: o.seed,
		LeastAccuracy: o.leastAccuracy,
	}
	if cmd.Flags().Changed("batch") {
		options.BatchSize = o.batch
	}
	return load.Read(options, cmd.InOrStdin())
}

// run sends the load and prints the report. It blocks until the load has ended and its queries are
// answered or have failed. A run in which no query was answered is an error.
func (o *benchOptions) run(cmd *cobra.Command) error {
	l, err := o.load(cmd)
	if err != nil {
		return misuse.Wrap(err)
	}
	c, err := o.open(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer c.Close()
	err = o.wait.awaitReady(cmd.Context(), cmd.ErrOrStderr(), c, "", l.Names()...)
	if err != nil {
		return err
	}
	err = l.Prepare(cmd.Context(), c, func(model, note string) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", model, terminal.Plain(note))
	})
	if err != nil {
		return err
	}
	if o.findThroughput {
		return o.search(cmd, c, l)
	}
	if o.verify != "" {
		if err := reference.Verify(cmd.Context(), c, o.verify, l.Models); err != nil {
			return fmt.Errorf("verify: %w", err)
		}
	}
	config := bench.Config{Duration: o.duration, MaxQueries: o.queries, Workload: l.Workload}
	if config.Queries, err = l.Queries(l.Workload.RateQPS, o.seed); err != nil {
		return err
	}
	show, done := bench.NewProgress(cmd.ErrOrStderr())
	config.Progress = show
	var log outcomeLog
	if o.logFile != "" {
		config.Ended = log.add
	}
	report, err := bench.Run(cmd.Context(), c, l.Models, config)
	done()
	if err == nil && o.logFile != "" {
		err = writeFile(o.logFile, log.write)
	}
	if err != nil {
		return err
	}
	if err := o.write(cmd, report, report.WriteText); err != nil {
		return err
	}
	if o.plot != "" {
		if err := writePicture(o.plot, report.WritePlot); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "latencies drawn to %s\n", o.plot)
	}
	if report.Interrupted {
		return cmd.Context().Err()
	}
	if !slices.ContainsFunc(report.Models,
		func(m bench.ModelReport) bool { return m.Answered > 0 }) {
		return errors.New("no query was answered")
	}
	var missed []error
	for _, m := range report.Models {
		if m.Queries > 0 && 100*m.QoSSatisfaction < o.failBelow-1e-9 { // but for rounding errors
			missed = append(missed,
				fmt.Errorf("fail-below: %s: %s of the queries within QoS, want %v %%", m.Model,
					bench.Percent(m.QoSSatisfaction), o.failBelow))
		}
	}
	if o.verify != "" {
		missed = append(missed, report.Wrong())
	}
	return errors.Join(missed...)
}

// An outcomeLog keeps what became of queries. It is safe for concurrent use.
type outcomeLog struct {
	mu      sync.Mutex
	queries []querytrace.TracedQuery
}

func (l *outcomeLog) add(q workload.Query, version string, latency time.Duration, err error) {
	outcome := "ok"
	if err != nil {
		outcome = bench.ReasonOf(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queries = append(l.queries, querytrace.TracedQuery{
		At: q.At, Model: q.Model, Rows: q.BatchSize, Users: q.Users, Values: q.Values,
		Deadline: q.Deadline, Version: version, Outcome: outcome, Latency: latency,
	})
}

// write writes the queries in the order of their arrival. No query is in flight.
func (l *outcomeLog) write(to io.Writer) error {
	slices.SortStableFunc(l.queries, func(a, b querytrace.TracedQuery) int {
		return cmp.Compare(a.At, b.At)
	})
	b := bufio.NewWriter(to)
	w := querytrace.NewWriter(b)
	for _, q := range l.queries {
		if err := w.Write(q); err != nil {
			return err
		}
	}
	return b.Flush()
}

// search finds the allowable throughput and prints it. Each rate that it tried is a line on
// standard error.
func (o *benchOptions) search(cmd *cobra.Command, c *client.Client, l *load.Load) error {
	found, err := bench.FindThroughput(cmd.Context(), c, l.Models, bench.Search{
		Queries:  l.Queries,
		Workload: l.Workload,
		Limit:    o.duration,
		Begun:    func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) },
		Progress: func(p bench.Probe) { fmt.Fprintln(cmd.ErrOrStderr(), p) },
	})
	if err != nil {
		return err
	}
	err = o.write(cmd, found, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, found)
		return err
	})
	return errors.Join(err, cmd.Context().Err())
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

// checkPicture checks the value of --plot. "" is no picture.
func checkPicture(path string) error {
	if path == "" {
		return nil
	}
	if _, err := picture.Format(path); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// writePicture has draw draw a picture to a file at path, in the format of the path's ending.
func writePicture(path string, draw func(w io.Writer, format string) error) error {
	format, err := picture.Format(path)
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return writeFile(path, func(w io.Writer) error { return draw(w, format) })
}

// writeFile has write fill a file at path, which then replaces an older one atomically: after an
// error path is as it was before.
func writeFile(path string, write func(io.Writer) error) error {
	if err := files.ReplaceBy(path, 0o644, write); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
