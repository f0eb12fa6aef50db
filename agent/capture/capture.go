package capture

import (
	"crypto/rand"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
)

const (
	// maxQueuedBytes and maxQueued bound what waits to be encoded. Chosen: some hundred usual queries
	// of 100 kB, so that a burst is kept, and an eighth of what an agent holds of queries by default.
	maxQueuedBytes, maxQueued = 32 << 20, 1024
)

// MaxQueryBytes bounds the tensors of a query that is kept, with its answer. Chosen: as for shadows.
const MaxQueryBytes = 4 << 20

// A Rule is what a model's settings say of its queries.
type Rule struct {
	*control.Capture
	// Roles measure the rows, users and values; nil: a query is one row.
	Roles *roles.Roles
	// IDBounds are above the valid ids of inputs, so that hashes of ids are valid, too.
	IDBounds map[string][]int64
}

// A Query is one that is kept.
type Query struct {
	Rule    Rule
	Request *oip.Request    // the Recorder's own, see [oip.Request.Share]; released by it
	Outputs []tensor.Tensor // the Recorder's own
	Arrival time.Time
	// Latency is how long the answer, or the failure, took; Deadline is how long the client waited.
	Latency, Deadline                           time.Duration
	Client, Version, Outcome, Agent, Cause, Arm string // "" if not known
}

// bytes is the size of the query's tensors.
func (q *Query) bytes() (n int64) {
	n = q.Request.Bytes()
	for i := range q.Outputs {
		n += int64(len(q.Outputs[i].Data))
	}
	return n
}

// A DropReason is why a query that was to be kept is not.
type DropReason string

// The reasons.
const (
	tooBusy    DropReason = "busy"       // too much waits to be encoded
	tooLarge   DropReason = "large"      // the query has more than MaxQueryBytes
	unwritable DropReason = "unwritable" // the disk is full, or the store does not answer
	overBudget DropReason = "budget"     // what may be written is written
	noRecord   DropReason = "invalid"    // the format cannot say it
)

// A Config is the surroundings of a [Recorder].
type Config struct {
	Sink Sink
	// Agent is the agent's name, which is unique: the names of files have it.
	Agent string
	// Key is that of hashes; nil: a random one, by which only what one start of one agent has kept
	// can be compared.
	Key     []byte
	Metrics *Metrics
	Log     *slog.Logger

	// SegmentBytes is from how many bytes of text on a file is written; 0: as by default.
	SegmentBytes int
	// Flush is how long a query waits at most to be written, RetryWait how long after a failure the
	// Recorder tries again, and WriteTimeout how long a write may take; 0: as by default.
	Flush, RetryWait, WriteTimeout time.Duration
}

// Metrics count what is kept.
type Metrics struct {
	kept, written prometheus.Counter
	dropped       *prometheus.CounterVec
}

// NewMetrics registers the metrics, which agents have that keep nothing, too.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		kept: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_captured_queries_total",
			Help: "Queries of clients that were kept with their answers.",
		}),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_capture_written_bytes_total",
			Help: "Bytes of the files in which queries were kept.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_capture_dropped_queries_total",
			Help: "Queries that were to be kept and are not, by reason. Their clients got their answers.",
		}, []string{"reason"}),
	}
	for _, reason := range []DropReason{tooBusy, tooLarge, unwritable, overBudget, noRecord} {
		m.dropped.WithLabelValues(string(reason))
	}
	registry.MustRegister(m.kept, m.written, m.dropped)
	return m
}

// A Recorder keeps queries. A nil Recorder keeps none. Its methods may be called concurrently, and
// all but Close return at once.
type Recorder struct {
	*Metrics
	config Config
	queue  chan *Query
	queued atomic.Int64 // bytes
	ended  chan struct{}

	mu     sync.RWMutex // not held while anything waits
	closed bool
}

// New returns a Recorder. The caller closes it.
func New(config Config) *Recorder {
	if config.Key == nil {
		config.Key = make([]byte, 32)
		_, _ = rand.Read(config.Key) // it never fails
	}
	if config.SegmentBytes == 0 {
		config.SegmentBytes = maxSegmentBytes
	}
	if config.Flush == 0 {
		config.Flush = flushWait
	}
	if config.RetryWait == 0 {
		config.RetryWait = retryWait
	}
	if config.WriteTimeout == 0 {
		config.WriteTimeout = writeTimeout
	}
	r := &Recorder{
		Metrics: config.Metrics, config: config, queue: make(chan *Query, maxQueued),
		ended: make(chan struct{}),
	}
	go r.write()
	return r
}

// Chooses reports whether a query is one of those that a rule keeps. Each is as likely as another.
func (r *Recorder) Chooses(c *control.Capture) bool {
	return r != nil && c != nil && mathrand.Float64() < c.GetShare()
}

// Keep takes a query to keep, or drops it.
func (r *Recorder) Keep(q *Query) {
	size := q.bytes()
	if size > MaxQueryBytes {
		r.drop(q, tooLarge)
		return
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		r.drop(q, tooBusy)
		return
	}
	if r.queued.Add(size) > maxQueuedBytes {
		r.queued.Add(-size)
		r.drop(q, tooBusy)
		return
	}
	select {
	case r.queue <- q:
	default:
		r.queued.Add(-size)
		r.drop(q, tooBusy)
	}
}

func (r *Recorder) drop(q *Query, why DropReason) {
	q.Request.Release()
	r.countDropped(why, 1)
}

func (r *Recorder) countDropped(why DropReason, n int) {
	r.dropped.WithLabelValues(string(why)).Add(float64(n))
}

// Close writes what waits, if that takes no longer than some seconds, and ends the Recorder.
func (r *Recorder) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.queue)
	}
	r.mu.Unlock()
	<-r.ended
}
