package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

// An outcome is what became of a query.
type outcome int

const (
	onTime outcome = iota
	late
	refused // with a reason: the fleet has more to do than it can
	lost    // no answer within the client's patience, or an error
	wrong   // an answer, but not to this query
	outcomes
)

var outcomeNames = [outcomes]string{"on time", "late", "refused", "lost", "wrong"}

// slowAnswer is what an answer should take at most, whatever happens.
const slowAnswer = time.Second

// A kind is one of the clients.
type kind struct {
	name  string
	share int // of the queries
	infer func(context.Context, *oip.Request) (*oip.Response, error)
}

// clients are all kinds of them.
type clients struct {
	sdk   *client.Client // which is asked for metadata and the leader, too
	kinds []kind
}

// A ledger has clients send queries, and an entry for each.
type ledger struct {
	clients
	name    string // begins the queries' ids
	targets map[string]time.Duration
	start   time.Time
	log     *csv.Writer // a line for each query

	mu       sync.Mutex
	sent     int
	counts   map[string]*[outcomes]int // by kind
	answers  map[string][]time.Duration
	ids      map[string]int // answers to each query, by the id that they have
	slow     map[string]int // answers that took longer than slowAnswer, by kind
	slowest  time.Duration
	examples map[string]*example // of what was not answered
}

// An example is of queries with the same fate.
type example struct {
	count int
	first time.Duration // since the start
	error string
}

func (w *weather) newLedger(name string) *ledger {
	l := &ledger{
		clients: w.clients, name: name, targets: w.targets, start: time.Now(), log: w.queries,
		counts: map[string]*[outcomes]int{}, answers: map[string][]time.Duration{}, ids: map[string]int{},
		slow: map[string]int{}, examples: map[string]*example{},
	}
	for _, k := range w.kinds {
		l.counts[k.name] = new([outcomes]int)
	}
	return l
}

// ModelMetadata makes it a server of package bench.
func (l *ledger) ModelMetadata(ctx context.Context, model, version string) (*inference.ModelMetadataResponse, error) {
	return l.sdk.ModelMetadata(ctx, model, version)
}

// next is who sends the n-th query.
func (l *ledger) next(n int) kind {
	sum := 0
	for _, k := range l.kinds {
		sum += k.share
	}
	n %= sum
	for _, k := range l.kinds {
		if n -= k.share; n < 0 {
			return k
		}
	}
	panic("unreachable")
}

// Infer sends a query, and enters what becomes of it.
func (l *ledger) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	l.mu.Lock()
	k := l.next(l.sent)
	req.ID = fmt.Sprintf("%s-%d", l.name, l.sent)
	l.sent++
	l.mu.Unlock()
	start := time.Now()
	resp, err := k.infer(ctx, req)
	took := time.Since(start)

	l.mu.Lock()
	defer l.mu.Unlock()
	o := onTime
	switch {
	case status.Code(err) == codes.ResourceExhausted:
		o = refused
		l.note(k, o, start, status.Convert(err).Message(), err)
	case err != nil:
		o = lost
		l.note(k, o, start, status.Code(err).String(), fmt.Errorf("%s to %s, after %v: %w", req.ID, req.Model, took.Round(time.Millisecond), err))
	default:
		l.ids[resp.ID]++
		l.answers[k.name] = append(l.answers[k.name], time.Since(l.start))
		l.slowest = max(l.slowest, took)
		if took > slowAnswer {
			l.slow[k.name]++
		}
		if fault := check(req, resp); fault != nil {
			o = wrong
			l.note(k, o, start, "", fault)
		} else if took > l.targets[req.Model] {
			o = late
		}
	}
	l.counts[k.name][o]++
	said := ""
	if err != nil {
		said = err.Error()
	}
	_ = l.log.Write([]string{ // Flush's error would be told, and nobody waits for one
		req.ID, k.name, req.Model, fmt.Sprint(req.Inputs[0].Shape[0]), fmt.Sprintf("%.3f", start.Sub(l.start).Seconds()),
		fmt.Sprintf("%.1f", float64(took)/1e6), outcomeNames[o], said,
	})
	return resp, err
}

func (l *ledger) note(k kind, o outcome, sent time.Time, reason string, err error) {
	key := k.name + ", " + outcomeNames[o]
	if o == lost {
		key += ", " + reason
	}
	e := l.examples[key]
	if e == nil {
		e = &example{first: sent.Sub(l.start), error: err.Error()}
		l.examples[key] = e
	}
	e.count++
}

// check reports why an answer cannot be that of the query; an emulated agent
// answers zeros.
func check(req *oip.Request, resp *oip.Response) error {
	if resp.ID != req.ID || resp.Model != req.Model {
		return fmt.Errorf("query %s to %s got the answer to %s of %s", req.ID, req.Model, resp.ID, resp.Model)
	}
	if len(resp.Outputs) == 0 {
		return fmt.Errorf("query %s got an answer without outputs", req.ID)
	}
	for _, out := range resp.Outputs {
		n, err := tensor.Elements(out.Shape)
		switch {
		case err != nil:
			return fmt.Errorf("query %s: output %q: %w", req.ID, out.Name, err)
		case len(out.Shape) == 0 || out.Shape[0] != req.Inputs[0].Shape[0]:
			return fmt.Errorf("query %s of batch size %d: output %q has shape %v", req.ID, req.Inputs[0].Shape[0], out.Name, out.Shape)
		case len(out.Data) != n*out.DataType.Size():
			return fmt.Errorf("query %s: output %q of shape %v has %d bytes", req.ID, out.Name, out.Shape, len(out.Data))
		case len(bytes.Trim(out.Data, "\x00")) > 0:
			return fmt.Errorf("query %s: output %q is not zeros", req.ID, out.Name)
		}
	}
	return nil
}

// count is how many queries had one of the outcomes.
func (l *ledger) count(of ...outcome) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.counts {
		for _, o := range of {
			n += c[o]
		}
	}
	return n
}

// twice is how many queries were answered more than once.
func (l *ledger) twice() (n int) {
	for _, answers := range l.ids {
		if answers > 1 {
			n++
		}
	}
	return n
}

// gap is the longest time without an answer to a kind of client, and when it
// began, from the start until end.
func (l *ledger) gap(kind string, end time.Time) (longest, began time.Duration) {
	last := time.Duration(0)
	times := append(slices.Sorted(slices.Values(l.answers[kind])), end.Sub(l.start))
	for _, at := range times {
		if at-last > longest {
			longest, began = at-last, last
		}
		last = at
	}
	return longest, began
}

// write prints the table of outcomes.
func (l *ledger) write(w io.Writer, end time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "client\tqueries\t")
	for _, name := range outcomeNames {
		fmt.Fprintf(t, "%s\t", name)
	}
	fmt.Fprintf(t, "over %v\tlongest gap\tat\t\n", slowAnswer)
	var all [outcomes]int
	slow := 0
	for _, k := range l.kinds {
		for o, n := range l.counts[k.name] {
			all[o] += n
		}
		gap, at := l.gap(k.name, end)
		writeOutcomes(t, k.name, l.counts[k.name])
		fmt.Fprintf(t, "%d\t%.2f s\t%.0f s\t\n", l.slow[k.name], gap.Seconds(), at.Seconds())
		slow += l.slow[k.name]
	}
	writeOutcomes(t, "all", &all)
	fmt.Fprintf(t, "%d\t\t\t\n", slow)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "the slowest answer took %.2f s\n", l.slowest.Seconds())
	for _, key := range slices.SortedFunc(maps.Keys(l.examples), func(a, b string) int {
		return cmp.Compare(l.examples[a].first, l.examples[b].first)
	}) {
		e := l.examples[key]
		fmt.Fprintf(w, "%s: %d, the first at %.1f s: %s\n", key, e.count, e.first.Seconds(), e.error)
	}
	return nil
}

func writeOutcomes(w io.Writer, name string, counts *[outcomes]int) {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	fmt.Fprintf(w, "%s\t%d\t", name, sum)
	for o, n := range counts {
		if outcome(o) == onTime {
			fmt.Fprintf(w, "%.2f %%\t", 100*float64(n)/float64(max(1, sum)))
		} else {
			fmt.Fprintf(w, "%d\t", n)
		}
	}
}
