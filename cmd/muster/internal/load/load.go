package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/cmd/muster/internal/inputs"
	"github.com/muster-serve/muster/profiles/workload"
)

// Options say what load to send. They are flags of `muster bench`; errors name the flags.
type Options struct {
	Models    []string // NAME or NAME=SHARE
	Inputs    []string // FILE or MODEL=FILE
	Shapes    []string // INPUT:DIMxDIM
	Arrivals  string
	From      string  // a file of recorded queries; "" unless Arrivals is one
	BatchSize string  // a distribution of batch sizes; "" if files of inputs give them, else trace
	Rate      float64 // queries a second over all models; 0 if not given
	Find      bool    // the rate is searched
	QoSMS     float64 // 0: the models' own QoS targets
	Timeout   time.Duration
	Seed      uint64
	// LeastAccuracy is demanded of the variants that answer for families; 0: any will do.
	LeastAccuracy float64
}

// A Load is the load that Options describe.
type Load struct {
	// Workload describes the queries in reports.
	Workload bench.Workload
	// Models are those to query, with their inputs. Prepare makes them.
	Models []*bench.TargetModel

	options Options
	trace   *workload.QueryTrace // nil unless the queries are recorded
	sizes   *workload.BatchSizes
	loads   []workload.Load
	given   map[string]*bench.Given // by model
	shapes  map[string][]int64      // by input
	// inputBytes is how many bytes the inputs of recorded queries have.
	inputBytes int64
}

// Read checks the options and opens the files that they name. It does not contact the server. If a
// file of inputs is "-" it reads stdin.
func Read(o Options, stdin io.Reader) (*Load, error) {
	l := &Load{
		options: o, given: map[string]*bench.Given{},
		Workload: bench.Workload{
			Arrivals: o.Arrivals, BatchSizes: o.BatchSize, RateQPS: o.Rate, Seed: o.Seed,
		},
	}
	var err error
	if l.shapes, err = inputs.ParseShapes(o.Shapes); err != nil {
		return nil, err
	}
	if len(l.shapes) > 0 && (len(o.Models) != 1 || len(o.Inputs) > 0) {
		return nil, errors.New("shape: is for the random inputs of one --model")
	}
	for _, m := range o.Models {
		name, share, err := ParseShare(m)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(l.loads, func(o workload.Load) bool { return o.Model == name }) {
			return nil, fmt.Errorf("model: %q is given twice", name)
		}
		l.loads = append(l.loads, workload.Load{Model: name, Share: share})
	}
	path, err := TracePath(o.From, o.Arrivals)
	if err != nil {
		return nil, err
	}
	if path != "" {
		l.Workload.Arrivals = path
		if err := l.readTrace(path); err != nil {
			return nil, err
		}
		return l, l.readInputs(stdin)
	}
	if err := CheckArrivals(o.Arrivals); err != nil {
		return nil, err
	}
	if !o.Find {
		if o.Rate == 0 {
			return nil, errors.New("rate: give --rate, or --find-throughput to search for one")
		}
		if _, err := workload.ParseArrivals(o.Arrivals, o.Rate); err != nil {
			return nil, err
		}
	}
	if len(l.loads) == 0 {
		return nil, errors.New("model: give --model NAME at least once")
	}
	if err := l.readInputs(stdin); err != nil {
		return nil, err
	}
	switch {
	case l.hasSizes():
		l.Workload.BatchSizes = strings.Join(o.Inputs, ", ")
		return l, nil
	case o.BatchSize == "":
		l.Workload.BatchSizes = "trace"
	}
	l.sizes, err = workload.ParseBatchSizes(l.Workload.BatchSizes)
	return l, err
}

// readInputs reads the files of inputs.
func (l *Load) readInputs(stdin io.Reader) error {
	for _, text := range l.options.Inputs {
		model, path := "", text
		for _, o := range l.loads {
			if file, ok := strings.CutPrefix(text, o.Model+"="); ok {
				model, path = o.Model, file
			}
		}
		switch {
		case model == "" && len(l.loads) > 1:
			return fmt.Errorf("input: %s: for which of the models? Give MODEL=FILE", text)
		case model == "":
			model = l.loads[0].Model
		}
		if given := l.given[model]; given != nil && given.Recorded != nil {
			return fmt.Errorf("input: %s has inputs for model %q; omit --input",
				l.Workload.Arrivals,
				model)
		} else if given != nil {
			return fmt.Errorf("input: there are two files for model %q", model)
		}
		given, err := inputs.Read(path, stdin)
		if err != nil {
			return err
		}
		if given.Queries != nil && l.options.BatchSize != "" {
			return fmt.Errorf("batch: the queries of %s have batch sizes; omit --batch", path)
		}
		l.given[model] = given
	}
	return nil
}

// keepInputs keeps the inputs of a recorded query, if it has some. If one of a model's queries has,
// all must.
func (l *Load) keepInputs(path string, number int, q querytrace.TracedQuery) error {
	given := l.given[q.Model]
	if given == nil {
		given = &bench.Given{}
		l.given[q.Model] = given
		if q.Inputs != nil {
			given.Recorded = map[int]bench.RecordedInputs{}
		}
	}
	if (q.Inputs != nil) != (given.Recorded != nil) {
		return fmt.Errorf("%s: query %d for model %q: some of the model's queries have inputs, want "+
			"all or none", path, number, q.Model)
	}
	if q.Inputs == nil {
		return nil
	}
	for _, t := range q.Inputs {
		l.inputBytes += int64(len(t.Data))
	}
	if l.inputBytes > inputs.MaxBytes {
		return fmt.Errorf("%s: inputs of more than %d bytes", path, int64(inputs.MaxBytes))
	}
	given.Recorded[number] = bench.RecordedInputs{Rows: q.Rows, Inputs: q.Inputs}
	return nil
}

// hasSizes reports whether all models have files of inputs that give their batch sizes.
func (l *Load) hasSizes() bool {
	return !slices.ContainsFunc(l.loads, func(o workload.Load) bool {
		return l.given[o.Model] == nil || l.given[o.Model].Queries == nil
	})
}

// ParseShare reads NAME=SHARE, or NAME for a share of 1. Shares are weights: they need not add up
// to 1.
func ParseShare(s string) (name string, share float64, err error) {
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

// readTrace takes arrivals, models, batch sizes and inputs from a file of recorded queries.
func (l *Load) readTrace(path string) error {
	o := l.options
	if o.Rate != 0 || o.Find {
		return fmt.Errorf("arrivals: %s sets the rate; omit --rate and --find-throughput", path)
	}
	trace, err := OpenTrace(path, func(number int, q querytrace.TracedQuery) error {
		return l.keepInputs(path, number, q)
	})
	if err != nil {
		return err
	}
	for model, given := range l.given {
		if given.Recorded == nil {
			delete(l.given, model)
		}
	}
	l.trace = trace
	l.Workload.BatchSizes, l.Workload.RateQPS = path, trace.Rate()
	if len(l.loads) == 0 {
		for _, m := range trace.Models() {
			l.loads = append(l.loads, workload.Load{Model: m})
		}
	}
	for _, m := range trace.Models() {
		if !slices.ContainsFunc(l.loads, func(o workload.Load) bool { return o.Model == m }) {
			return fmt.Errorf("arrivals: %s has queries for model %q, which no --model names",
				path, m)
		}
	}
	return nil
}

// Names are the models and families to query.
func (l *Load) Names() []string {
	var all []string
	for _, o := range l.loads {
		all = append(all, o.Model)
	}
	return all
}

// Prepare asks the server for the models' inputs and limits, and sets l.Models. A batch size that a
// model does not accept is an error for a trace; a distribution is cut off at the largest one. note
// is called with what a user should know of a model.
func (l *Load) Prepare(ctx context.Context, server bench.Server,
	note func(model, note string)) error {
	for i := range l.loads {
		name := l.loads[i].Model
		batchless := false
		if given := l.given[name]; given != nil && given.Queries != nil {
			var err error
			if batchless, err = bench.Batchless(ctx, server, name); err != nil {
				return err
			}
		}
		sizes, err := l.sizesOf(name, batchless)
		if err != nil {
			return fmt.Errorf("model %q: %w", name, err)
		}
		options := bench.ModelOptions{
			QoSTarget:        time.Duration(l.options.QoSMS * float64(time.Millisecond)),
			Timeout:          l.options.Timeout,
			LeastAccuracy:    l.options.LeastAccuracy,
			Seed:             l.options.Seed,
			LargestBatchSize: sizes.Largest(),
			Given:            l.given[name],
			Shapes:           l.shapes,
		}
		m, err := bench.NewTargetModel(ctx, server, name, options)
		if err != nil {
			return err
		}
		if l.trace != nil {
			if most := m.LargestBatchSize; most < options.LargestBatchSize {
				return fmt.Errorf("arrivals: %s has a query of batch size %d for model %q, which "+
					"takes at most %d", l.Workload.Arrivals, options.LargestBatchSize, name, most)
			}
		} else if l.loads[i].BatchSizes, err = sizes.AtMost(m.LargestBatchSize); err != nil {
			return fmt.Errorf("model %q: %w", name, err)
		}
		for _, text := range m.Notes {
			note(name, text)
		}
		l.Models = append(l.Models, m)
	}
	return nil
}

// sizesOf returns the batch sizes of a model's queries: those of the trace, of the file of its
// inputs, or of the distribution.
func (l *Load) sizesOf(model string, batchless bool) (sizes *workload.BatchSizes, err error) {
	given := l.given[model]
	var ofFile *workload.BatchSizes
	if given != nil && given.Queries != nil {
		if ofFile, err = given.BatchSizes("of the inputs", batchless); err != nil {
			return nil, err
		}
	}
	switch {
	case l.trace == nil && ofFile != nil:
		return ofFile, nil
	case l.trace == nil:
		return l.sizes, nil
	}
	if sizes = l.trace.BatchSizes(model); sizes == nil { // it has no queries for it
		return workload.Fixed(1)
	}
	for _, p := range sizes.PMF() {
		if ofFile != nil && !slices.ContainsFunc(ofFile.PMF(),
			func(o workload.Probability) bool { return o.BatchSize == p.BatchSize }) {
			return nil, fmt.Errorf(
				"%s has a query of batch size %d, of which the file of inputs has "+
					"none", l.Workload.Arrivals, p.BatchSize)
		}
	}
	return sizes, nil
}

// Queries returns the queries to send, in order of their arrival times, at rate queries a second.
// With a trace file both arguments are ignored.
func (l *Load) Queries(rate float64, seed uint64) (iter.Seq[workload.Query], error) {
	if l.trace != nil {
		return l.trace.Queries(), nil
	}
	a, err := workload.ParseArrivals(l.options.Arrivals, rate)
	if err != nil {
		return nil, err
	}
	return workload.Queries(seed, a, l.loads...)
}

// IsFile reports whether there is something at path that is not a directory. Flags that take a name
// or a file use it to tell which one was given.
func IsFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}
