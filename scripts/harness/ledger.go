package harness

import (
	"bytes"
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
	Refused         // with a reason: the fleet has more to do than it can
	Failed          // no answer within the client's patience, or an error
	Wrong           // an answer, but not to this query
	outcomes
)

var outcomeNames = [outcomes]string{"on time", "late", "refused", "failed", "wrong"}

// A Client is one way for queries to reach a fleet.
type Client struct {
	Name  string
	Share int // of the queries
	Infer func(context.Context, *oip.Request) (*oip.Response, error)
}

// An entry is on a query that has come to its end.
type entry struct {
	id, model, client string
	batchSize         int64
	sent              time.Time
	took              time.Duration
	outcome           Outcome
	err               error
}

// A Ledger has clients send queries in turn, and an entry for each. It is safe for concurrent use.
type Ledger struct {
	Numbers bool // answers are a model's; otherwise an emulated agent's, which are zeros

	server  bench.Server
	clients []Client
	targets map[string]time.Duration
	stolen  *stolenTime

	mu      sync.Mutex
	sent    int
	entries []entry
	answers map[string]int // to each query, by the id that they have
}

func newLedger(ctx context.Context, server bench.Server, clients []Client) *Ledger {
	return &Ledger{
		server: server, clients: clients, targets: map[string]time.Duration{},
		stolen:  watchStolen(ctx),
		answers: map[string]int{},
	}
}

// ModelMetadata makes it a server of package bench.
func (l *Ledger) ModelMetadata(ctx context.Context, model,
	version string) (*inference.ModelMetadataResponse, error) {
	return l.server.ModelMetadata(ctx, model, version)
}

// next is who sends the n-th query.
func (l *Ledger) next(n int) Client {
	sum := 0
	for _, c := range l.clients {
		sum += c.Share
	}
	n %= sum
	i := slices.IndexFunc(l.clients, func(c Client) bool { n -= c.Share; return n < 0 })
	return l.clients[i]
}

// Infer sends a query, and enters what becomes of it.
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

// check reports why an answer cannot be that of the query.
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
		case !numbers && len(bytes.Trim(out.Data, "\x00")) > 0:
			return fmt.Errorf("query %s: output %q is not zeros", req.ID, out.Name)
		}
	}
	return nil
}

// A Count is entries counted.
type Count struct {
	Queries, OnTime, Late, Refused, Failed, Wrong int
	// AtOnce are the refused whose client knew that within the QoS target, and when to come again.
	AtOnce int
	// Robbed are the failed whose time others had of the machine's CPUs. They are not in Failed.
	Robbed  int
	Example error // of what failed or was wrong
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

// PercentOnTime is of all queries.
func (c Count) PercentOnTime() float64 {
	return 100 * float64(c.OnTime) / float64(max(1, c.Queries))
}

// PercentLate is of all queries.
func (c Count) PercentLate() float64 { return 100 * float64(c.Late) / float64(max(1, c.Queries)) }

// Plus is both.
func (c Count) Plus(o Count) Count {
	if c.Example == nil {
		c.Example = o.Example
	}
	return Count{
		c.Queries + o.Queries, c.OnTime + o.OnTime, c.Late + o.Late, c.Refused + o.Refused,
		c.Failed + o.Failed, c.Wrong + o.Wrong, c.AtOnce + o.AtOnce, c.Robbed + o.Robbed, c.Example,
	}
}

// Between counts the queries sent in [from, to) that have come to their end.
func (l *Ledger) Between(from, to time.Time) Count {
	c, _ := l.count(func(e entry) bool { return !e.sent.Before(from) && e.sent.Before(to) })
	return c
}

// count counts the entries to keep, and returns them.
func (l *Ledger) count(keep func(entry) bool) (c Count, kept []entry) {
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
			if l.stolen.between(e.sent, e.sent.Add(e.took)) > 0 {
				c.Robbed++
			} else {
				c.Failed++
			}
		}
	}
	return c, kept
}

// Disturbed is the largest share of the machine's CPU time that others were given at a time in
// [from, to], 0 where that is too little to matter.
func (l *Ledger) Disturbed(from, to time.Time) float64 { return l.stolen.between(from, to) }

// Sent is how many queries were sent so far, wherever they are.
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

// Refusals are the queries of a report that were refused, which it has among those that failed.
func Refusals(m bench.ModelReport) (n int64) {
	for _, f := range m.Failures {
		if f.Reason == client.ErrOverloaded.Error() {
			n += f.Count
		}
	}
	return n
}

// slow is what an answer should take at most, whatever happens.
const slow = time.Second

// Write prints a table of what became of the queries that were sent in [from, to), by client, with
// the longest time without an answer, and an example of what failed or was wrong.
func (l *Ledger) Write(w io.Writer, from, to time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "client\tover %v\tlongest gap\tat\tof\n", slow)
	for _, client := range l.clients {
		c, kept := l.count(func(e entry) bool {
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
		_ = c.Write([]string{ // Flush's error is this one's, too
			e.id, e.client, e.model, fmt.Sprint(e.batchSize),
			fmt.Sprintf("%.3f", e.sent.Sub(start).Seconds()),
			fmt.Sprintf("%.1f", float64(e.took)/1e6), outcomeNames[e.outcome], said,
		})
	}
	c.Flush()
	return c.Error()
}
