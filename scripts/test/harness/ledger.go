package harness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
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
	"github.com/muster-serve/muster/client/bench"
)

// An Outcome is what became of a query.
type Outcome int

const (
	OnTime  Outcome = iota
	Late            // answered past the QoS target
	Refused         // with a reason: too many queries wait
	Failed          // no answer within the client's patience, or an error
	Wrong           // the answer cannot be this query's
	outcomes
)

var outcomeNames = [outcomes]string{"on time", "late", "refused", "failed", "wrong"}

// A Client sends queries to a fleet.
type Client struct {
	Name  string
	Share int // of the queries
	Infer func(context.Context, *oip.Request) (*oip.Response, error)
}

// An entry says what became of a query.
type entry struct {
	id, model, client string
	batchSize         int64
	sent              time.Time
	took              time.Duration
	outcome           Outcome
	err               error
}

// A Ledger sends queries by its clients, by their shares, and has an entry for each query. It is
// safe for concurrent use.
type Ledger struct {
	Numbers bool // models compute the answers; otherwise agents are emulated and answer zeros

	server  bench.Server
	clients []Client
	targets map[string]time.Duration
	stolen  *stolenTime

	mu      sync.Mutex
	sent    int
	entries []entry
	answers map[string]int // how many answers have this query's id
}

func newLedger(ctx context.Context, server bench.Server, clients []Client) *Ledger {
	return &Ledger{
		server: server, clients: clients, targets: map[string]time.Duration{},
		stolen:  watchStolen(ctx),
		answers: map[string]int{},
	}
}

// ModelMetadata asks the server. With it and Infer a Ledger is a bench.Server.
func (l *Ledger) ModelMetadata(ctx context.Context, model,
	version string) (*inference.ModelMetadataResponse, error) {
	return l.server.ModelMetadata(ctx, model, version)
}

// next is the client that sends the n-th query.
func (l *Ledger) next(n int) Client {
	sum := 0
	for _, c := range l.clients {
		sum += c.Share
	}
	n %= sum
	i := slices.IndexFunc(l.clients, func(c Client) bool { n -= c.Share; return n < 0 })
	return l.clients[i]
}

// Infer sends a query, and records what became of it.
func (l *Ledger) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	l.mu.Lock()
	c := l.next(l.sent)
	req.ID = fmt.Sprint(l.sent)
	l.sent++
	l.mu.Unlock()
	e := entry{
		id: req.ID, model: req.Model, client: c.Name, batchSize: req.Inputs[0].Shape[0],
		sent: time.Now(),
	}
	resp, err := c.Infer(ctx, req)
	e.took, e.err = time.Since(e.sent), err

	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, client.ErrOverloaded) || status.Code(err) == codes.ResourceExhausted:
		e.outcome = Refused
	case err != nil:
		e.outcome = Failed
	default:
		l.answers[resp.ID]++
		if e.err = check(req, resp, l.Numbers); e.err != nil {
			e.outcome = Wrong
		} else if e.took > l.targets[req.Model] {
			e.outcome = Late
		}
	}
	l.entries = append(l.entries, e)
	return resp, err
}

// check is nil if the answer may be that of the query. It checks ids, names, shapes and sizes, and
// the numbers if they are to be zeros.
func check(req *oip.Request, resp *oip.Response, numbers bool) error {
	if resp.ID != req.ID || resp.Model != req.Model {
		return fmt.Errorf("query %s to %s got the answer to %s of %s", req.ID, req.Model, resp.ID,
			resp.Model)
	}
	if len(resp.Outputs) == 0 {
		return fmt.Errorf("query %s got an answer without outputs", req.ID)
	}
	for _, out := range resp.Outputs {
		n, err := tensor.Elements(out.Shape)
		switch size := req.Inputs[0].Shape[0]; {
		case err != nil:
			return fmt.Errorf("query %s: output %q: %w", req.ID, out.Name, err)
		case len(out.Shape) == 0 || out.Shape[0] != size:
			return fmt.Errorf("query %s of batch size %d: output %q has shape %v", req.ID, size,
				out.Name, out.Shape)
		case len(out.Data) != n*out.DataType.Size():
			return fmt.Errorf("query %s: output %q of shape %v has %d bytes", req.ID, out.Name,
				out.Shape, len(out.Data))
		case !numbers && bytes.Count(out.Data, []byte{0}) < len(out.Data):
			return fmt.Errorf("query %s: output %q is not zeros", req.ID, out.Name)
		}
	}
	return nil
}

// A Count says how many queries had which outcome.
type Count struct {
	Queries, OnTime, Late, Refused, Failed, Wrong int
	// AtOnce are those of Refused that were refused within the QoS target and told
	// when to try again.
	AtOnce int
	// Robbed are the queries that failed while CPU time was stolen. They are not in Failed.
	Robbed  int
	Example error // one error of those that failed or were wrong
}

func (c Count) String() string {
	s := fmt.Sprintf("%d queries: %.2f %% on time, %d late, %d refused, %d failed, %d wrong",
		c.Queries, c.PercentOnTime(), c.Late, c.Refused, c.Failed, c.Wrong)
	if c.Robbed > 0 {
		s += fmt.Sprintf(", %d failed while CPU time was stolen", c.Robbed)
	}
	if c.Example != nil {
		s += fmt.Sprintf(" (%v)", c.Example)
	}
	return s
}

// PercentOnTime is the percentage of all queries that were answered on time.
func (c Count) PercentOnTime() float64 {
	return 100 * float64(c.OnTime) / float64(max(1, c.Queries))
}

// PercentLate is the percentage of all queries that were answered late.
func (c Count) PercentLate() float64 { return 100 * float64(c.Late) / float64(max(1, c.Queries)) }

// Plus is the sum of both counts.
func (c Count) Plus(o Count) Count {
	if c.Example == nil {
		c.Example = o.Example
	}
	return Count{
		c.Queries + o.Queries, c.OnTime + o.OnTime, c.Late + o.Late, c.Refused + o.Refused,
		c.Failed + o.Failed, c.Wrong + o.Wrong, c.AtOnce + o.AtOnce, c.Robbed + o.Robbed, c.Example,
	}
}

// NotFound is how many queries were refused because no agent holds their model.
func (l *Ledger) NotFound() int {
	_, all := l.countEntries(func(e entry) bool { return status.Code(e.err) == codes.NotFound })
	return len(all)
}

// Between counts the queries sent in [from, to) that have an outcome.
func (l *Ledger) Between(from, to time.Time) Count {
	c, _ := l.countEntries(func(e entry) bool { return !e.sent.Before(from) && e.sent.Before(to) })
	return c
}

// Quantile is, in ms, the latency that a share of a model's queries sent in [from, to) do not
// exceed, counted from when they were sent; 0 if none was answered.
func (l *Ledger) Quantile(share float64, model string, from, to time.Time) float64 {
	_, kept := l.countEntries(func(e entry) bool {
		return e.model == model && e.outcome <= Late && !e.sent.Before(from) && e.sent.Before(to)
	})
	if len(kept) == 0 {
		return 0
	}
	slices.SortFunc(kept, func(a, b entry) int { return cmp.Compare(a.took, b.took) })
	return kept[min(len(kept)-1, int(share*float64(len(kept))))].took.Seconds() * 1e3
}

// countEntries counts the entries that keep selects, and returns them.
func (l *Ledger) countEntries(keep func(entry) bool) (c Count, kept []entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if !keep(e) {
			continue
		}
		kept = append(kept, e)
		c.Queries++
		switch e.outcome {
		case OnTime:
			c.OnTime++
		case Late:
			c.Late++
		case Refused:
			c.Refused++
			if x := new(client.Error); errors.As(e.err, &x) && x.RetryAfter > 0 &&
				e.took <= l.targets[e.model] {
				c.AtOnce++
			}
		case Wrong:
			c.Wrong++
			c.Example = e.err
		default:
			c.Example = e.err
			if l.stolen.maxShareBetween(e.sent, e.sent.Add(e.took)) > 0 {
				c.Robbed++
			} else {
				c.Failed++
			}
		}
	}
	return c, kept
}

// Disturbed is the largest share of the CPUs' time that was stolen at a time in [from, to]; 0 if
// that is too little to matter.
func (l *Ledger) Disturbed(from, to time.Time) float64 { return l.stolen.maxShareBetween(from, to) }

// Sent is how many queries were sent so far, with an outcome or not yet.
func (l *Ledger) Sent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}

// Twice is how many queries were answered more than once.
func (l *Ledger) Twice() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, answers := range l.answers {
		if answers > 1 {
			n++
		}
	}
	return n
}

// Refusals is how many queries were refused. A report counts them among the failed ones.
func Refusals(m bench.ModelReport) (n int64) {
	for _, f := range m.Failures {
		if f.Reason == client.ErrOverloaded.Error() {
			n += f.Count
		}
	}
	return n
}

// slow is the latency above which Write counts an answer.
const slow = time.Second

// Write prints a table of the queries that were sent in [from, to): a line for each client, with
// the outcomes, the number of answers slower than a second, and the longest time without an answer.
func (l *Ledger) Write(w io.Writer, from, to time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "client\tover %v\tlongest gap\tat\tof\n", slow)
	for _, client := range l.clients {
		c, kept := l.countEntries(func(e entry) bool {
			return e.client == client.Name && !e.sent.Before(from) && e.sent.Before(to)
		})
		overSlow, answered := 0, []time.Time{from, to}
		for _, e := range kept {
			if e.outcome <= Late {
				answered = append(answered, e.sent.Add(e.took))
				if e.took > slow {
					overSlow++
				}
			}
		}
		slices.SortFunc(answered, time.Time.Compare)
		var gap, at time.Duration
		for i := range answered[1:] {
			if d := answered[i+1].Sub(answered[i]); d > gap {
				gap, at = d, answered[i].Sub(from)
			}
		}
		fmt.Fprintf(t, "%s\t%d\t%.2f s\t%.0f s\t%v\n", client.Name, overSlow, gap.Seconds(),
			at.Seconds(), c)
	}
	return t.Flush()
}

// WriteCSV writes a line for each query.
func (l *Ledger) WriteCSV(w io.Writer, start time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := csv.NewWriter(w)
	_ = c.Write([]string{
		"id", "client", "model", "batch_size", "sent_s", "latency_ms", "outcome", "error",
	})
	for _, e := range l.entries {
		said := ""
		if e.err != nil {
			said = e.err.Error()
		}
		_ = c.Write([]string{ // c.Error returns its error, too
			e.id, e.client, e.model, fmt.Sprint(e.batchSize),
			fmt.Sprintf("%.3f", e.sent.Sub(start).Seconds()),
			fmt.Sprintf("%.1f", float64(e.took)/1e6), outcomeNames[e.outcome], said,
		})
	}
	c.Flush()
	return c.Error()
}
