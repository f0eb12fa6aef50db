package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/profiles/workload"
)

// DefaultMaxInFlight is the default of [Config.MaxInFlight].
const DefaultMaxInFlight = 4096

// A Config says which queries Run sends, and when it ends.
type Config struct {
	// Queries yields the queries in the order of their arrivals, At being the time since the start.
	// Each is sent when it is due.
	Queries iter.Seq[workload.Query]
	// Duration ends the run: queries due at Duration or later are not sent. 0 means that the run
	// ends after the last of Queries, or after MaxQueries.
	Duration time.Duration
	// MaxQueries is the most queries to send; 0 means no limit.
	MaxQueries int
	// MaxInFlight bounds the queries sent and not yet answered, so that a stalled server does not
	// use up this process's memory. A query beyond it is not sent and counts as failed. 0 means
	// DefaultMaxInFlight.
	MaxInFlight int
	// Workload describes Queries in the report.
	Workload Workload
	// Progress, if set, is called about once a second, from one goroutine, while queries are sent.
	Progress func(Progress)

	// Ended, if set, is called with each query that was answered or failed, from several goroutines
	// at once. version is the answer's, "" for a failed query.
	Ended func(q workload.Query, version string, latency time.Duration, err error)

	// tolerable, if set, returns how many queries of a model may miss its QoS target before the run
	// ends as failed.
	tolerable func(model string) int
}

// A Workload describes the queries sent, in the terms of package workload.
type Workload struct {
	Arrivals   string  `json:"arrivals"`
	BatchSizes string  `json:"batch_sizes"`
	RateQPS    float64 `json:"rate_qps"` // mean rate of arrivals, queries/s
	Seed       uint64  `json:"seed"`
}

// A Progress is the state of a run in progress.
type Progress struct {
	Elapsed, Duration time.Duration // Duration is 0 if the end is not known
	Sent              int64         // queries so far
	Late, Failed      int64         // how many of them were late, or failed
	InFlight          int64
	Rate              float64 // answers/s since the last progress
	// P99 is the 99th percentile of the latencies since the last progress, for each model in the
	// order of Run's models; 0 if no query ended. A failed query counts as infinitely late: the
	// longest duration if more than one in a hundred failed.
	P99 []ModelLatency
	// Accuracy is the effective accuracy of the answers since the last progress, for each family
	// that has any.
	Accuracy []ModelAccuracy
}

// A ModelAccuracy is the effective accuracy of one family.
type ModelAccuracy struct {
	Family   string
	Accuracy float64
}

// A ModelLatency is a latency of one model.
type ModelLatency struct {
	Model   string
	Latency time.Duration
}

// Run sends queries to the models until the end that c sets or until ctx ends, waits for the
// answers, and returns a report. If ctx ended the run early the report says so, and there is no
// error. Its goroutines, one for each query in flight and one for the progress, have ended when it
// returns.
func Run(ctx context.Context, server Server, models []*TargetModel, c Config) (*Report, error) {
	t, err := newTimer()
	if err != nil {
		return nil, err
	}
	defer t.close()
	return run(ctx, server, models, c, t.wait)
}

// A generator is the state of one run.
type generator struct {
	config Config
	server Server
	models []*recorder
	// wait returns at a given time, or with an error when ctx ends.
	wait func(ctx context.Context, until time.Time) error
	// slots holds a value for each query in flight.
	slots chan struct{}
	// next hands queries to idle goroutines; it is closed when all have been sent.
	next chan func()
	// delays has how long after they were due queries were sent, in us. Only the sending goroutine
	// uses it.
	delays *hdrhistogram.Histogram
	// abandon ends the run; it is called from a query's goroutine.
	abandon context.CancelCauseFunc
}

var errPointless = errors.New("more queries missed the QoS target than are allowed to")

func run(ctx context.Context, server Server, models []*TargetModel, c Config,
	wait func(context.Context, time.Time) error) (*Report, error) {
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	ctx, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)
	g := &generator{
		config:  c,
		server:  server,
		wait:    wait,
		slots:   make(chan struct{}, c.MaxInFlight), // a semaphore
		next:    make(chan func()),
		delays:  newHistogram(),
		abandon: abandon,
	}
	for _, m := range models {
		r := newRecorder(m)
		if c.tolerable != nil {
			r.tolerable = c.tolerable(m.Name)
		}
		g.models = append(g.models, r)
	}

	start := time.Now()
	progress := g.startProgress(start)
	span, err := g.send(ctx, start)
	progress()
	if err != nil {
		abandon(err)
		g.waitForAnswers()
		return nil, err
	}
	g.waitForAnswers()
	return g.makeReport(start, span, time.Since(start), context.Cause(ctx)), nil
}

// waitForAnswers waits until no query is in flight. Each query ends at its timeout at the latest.
func (g *generator) waitForAnswers() {
	close(g.next)
	for range cap(g.slots) {
		g.slots <- struct{}{}
	}
}

// send sends the queries as they become due and returns the time they span.
func (g *generator) send(ctx context.Context, start time.Time) (span time.Duration, err error) {
	pick := rand.New(rand.NewPCG(g.config.Workload.Seed, 4))
	sent := 0
	for q := range g.config.Queries {
		if d := g.config.Duration; d > 0 && q.At >= d {
			if err := g.wait(ctx, start.Add(d)); err != nil {
				return time.Since(start), onlyIfAlive(ctx, err)
			}
			return d, nil
		}
		m, err := g.modelOf(q)
		if err != nil {
			return 0, err
		}
		req, from := m.makeRequest(q, pick)
		due := start.Add(q.At)
		if err := g.wait(ctx, due); err != nil {
			return time.Since(start), onlyIfAlive(ctx, err)
		}
		recordLatency(g.delays, time.Since(due))
		m.countSent(q.BatchSize)
		select {
		case g.slots <- struct{}{}:
			g.do(func() {
				defer func() { <-g.slots }()
				ctx, cancel := context.WithDeadline(ctx, due.Add(cmp.Or(q.Deadline, m.Timeout)))
				defer cancel()
				answer, err := g.server.Infer(ctx, req)
				latency := time.Since(due)
				version := ""
				if err == nil {
					version = answer.Version
					if err = m.check(answer, from, q.BatchSize); err == nil {
						m.answeredBy(answer)
					}
					answer.Release()
				}
				if m.countFinished(latency, err, errors.Is(ctx.Err(), context.Canceled)) {
					g.abandon(errPointless)
				}
				if g.config.Ended != nil {
					g.config.Ended(q, version, latency, err)
				}
			})
		default:
			m.notSent(g.config.MaxInFlight)
		}
		span = q.At
		if sent++; sent == g.config.MaxQueries {
			return span, nil
		}
	}
	return span, nil
}

// do calls query on a goroutine that has sent queries before, if one is idle, else on a new one. A
// new one has a small stack, which grows by copying: that takes a twentieth of a client's CPU time.
func (g *generator) do(query func()) {
	select {
	case g.next <- query:
	default:
		go func() {
			for ok := true; ok; query, ok = <-g.next {
				query()
			}
		}()
	}
}

// onlyIfAlive is err, or nil if ctx has ended: a run that ctx ended is no failure.
func onlyIfAlive(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (g *generator) modelOf(q workload.Query) (*recorder, error) {
	i := slices.IndexFunc(g.models, func(m *recorder) bool { return m.Name == q.Model })
	if i < 0 {
		return nil, fmt.Errorf("a query for model %q, which is not under load", q.Model)
	}
	if m := g.models[i]; !m.hasInputs(q) {
		return nil, fmt.Errorf(
			"a query of batch size %d for model %q, which has no inputs of this size, the largest "+
				"being %d", q.BatchSize, q.Model, m.rows)
	}
	return g.models[i], nil
}

// startProgress calls Config.Progress every second until the function it
// returns is called.
func (g *generator) startProgress(start time.Time) (stop func()) {
	if g.config.Progress == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		last := start
		for {
			select {
			case now := <-tick.C:
				g.config.Progress(g.currentProgress(start, last, now))
				last = now
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func (g *generator) currentProgress(start, last, now time.Time) Progress {
	p := Progress{
		Elapsed: now.Sub(start), Duration: g.config.Duration, InFlight: int64(len(g.slots)),
	}
	var answered int64
	for _, m := range g.models {
		m.mu.Lock()
		p.Sent += m.queries
		p.Late += m.late
		p.Failed += m.failed
		answered += m.recent.TotalCount()
		p.P99 = append(p.P99, ModelLatency{m.Name, quantileOfAll(m.recent, m.recentFailed, 99)})
		if _, accuracy := m.recentVariants.reportVariants(); accuracy > 0 {
			p.Accuracy = append(p.Accuracy, ModelAccuracy{m.Name, accuracy})
		}
		m.recent.Reset()
		m.recentFailed, m.recentVariants = 0, nil
		m.mu.Unlock()
	}
	p.Rate = float64(answered) / now.Sub(last).Seconds()
	return p
}

// A recorder counts the outcomes of one model's queries.
type recorder struct {
	*TargetModel
	tolerable int // misses allowed before the run ends; negative: any number

	mu         sync.Mutex
	queries    int64
	items      int64
	late       int64
	emulated   int64
	failed     int64
	unfinished int64
	failures   map[string]*Failure
	latencies  *hdrhistogram.Histogram // of answered queries, us
	variants   variants                // of answered queries
	// recent, recentFailed and recentVariants are latencies, failed and variants since the last
	// progress.
	recent         *hdrhistogram.Histogram
	recentFailed   int64
	recentVariants variants
}

func newRecorder(m *TargetModel) *recorder {
	return &recorder{
		TargetModel: m, tolerable: -1, failures: map[string]*Failure{}, latencies: newHistogram(),
		recent: newHistogram(),
	}
}

func (m *recorder) countSent(batchSize int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queries++
	m.items += int64(batchSize)
}

// notSent counts a query that was not sent because limit queries were in flight.
func (m *recorder) notSent(limit int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail("not sent", fmt.Sprintf("not sent, as %d queries were in flight", limit))
}

// answeredBy counts the variants that have answered queries for a family, and answers of agents
// that run no model.
func (m *recorder) answeredBy(answer *oip.Response) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.variants.countAnswer(answer)
	m.recentVariants.countAnswer(answer)
	if answer.Emulated {
		m.emulated++
	}
}

// countFinished counts a query that was answered or failed, and reports whether more queries have
// missed the QoS target than tolerable. cancelled says that ctx ended the run before the query
// ended.
func (m *recorder) countFinished(latency time.Duration, err error,
	cancelled bool) (pointless bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		recordLatency(m.latencies, latency)
		recordLatency(m.recent, latency)
		if latency > m.QoSTarget {
			m.late++
		}
	case cancelled:
		m.unfinished++
	default:
		m.fail(ReasonOf(err), err.Error())
	}
	return m.tolerable >= 0 && m.late+m.failed > int64(m.tolerable)
}

func (m *recorder) fail(reason, example string) {
	m.failed++
	m.recentFailed++
	f, ok := m.failures[reason]
	if !ok {
		f = &Failure{Reason: reason, Example: example}
		m.failures[reason] = f
	}
	f.Count++
}

// ReasonOf names the kind of a query's error, as reports do.
func ReasonOf(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return client.ErrDeadline.Error()
	}
	for _, kind := range []error{
		errWrong,
		client.ErrDeadline, client.ErrLimit, client.ErrOverloaded, client.ErrUnavailable,
		client.ErrInvalid, client.ErrNotFound, client.ErrTooLarge, client.ErrClosed,
	} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return "other"
}

// Histograms hold whole microseconds up to an hour, with an error of at most 0.1 %.
const (
	histogramUnit = time.Microsecond
	histogramMost = int64(time.Hour / histogramUnit)
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, histogramMost, 3) }

func recordLatency(h *hdrhistogram.Histogram, d time.Duration) {
	// Cannot fail: the value is within the histogram's range.
	_ = h.RecordValue(min(max(int64(d/histogramUnit), 1), histogramMost))
}

// percentileLatency is the latency at a percentile in 0..100; 0 if h is empty.
func percentileLatency(h *hdrhistogram.Histogram, percentile float64) time.Duration {
	return time.Duration(h.ValueAtPercentile(percentile)) * histogramUnit
}

// never is the latency of a failed query.
const never = time.Duration(math.MaxInt64)

// quantileOfAll is the latency at a percentile in 0..100 of the answered queries of h and of failed
// ones, whose latency is never; 0 if there are none.
func quantileOfAll(h *hdrhistogram.Histogram, failed int64, percentile float64) time.Duration {
	if failed > 0 {
		answered := float64(h.TotalCount())
		percentile *= (answered + float64(failed)) / answered
		if !(percentile <= 100+1e-9) { // also if none was answered
			return never
		}
	}
	return percentileLatency(h, min(percentile, 100))
}
