package serve

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/runtime/load"
)

const (
	// loadTrailer and loadHeader are ORCA's names for the load report in a gRPC answer and in an
	// HTTP answer.
	loadTrailer = "endpoint-load-metrics-bin"
	loadHeader  = "Endpoint-Load-Metrics"
	// keepReport is how long a report is kept before it is made anew. A connection gets each report
	// with one answer only: balancers read it no more often than once a second, and each costs the
	// server and the client a dozen allocations.
	keepReport = 100 * time.Millisecond
)

// loads makes the ORCA load reports of this agent, for clients that balance by them. A report is of
// the lanes, whoever sends them queries. Its methods may be called concurrently.
type loads struct {
	worker *worker.Worker
	// laneType is the type of this agent's lanes, "" while unknown.
	laneType func() string
	began    time.Time
	report   atomic.Pointer[loadReport]

	making sync.Mutex // held while a report is made
	meter  load.Meter
}

// A loadReport is a report in the forms in which it is sent.
type loadReport struct {
	number  uint64 // counts up
	made    time.Time
	trailer metadata.MD // must not be changed
	header  string
}

func newLoads(w *worker.Worker, laneType func() string) *loads {
	l := &loads{worker: w, laneType: laneType, began: time.Now()}
	l.report.Store(&loadReport{})
	return l
}

// measureBusy returns how busy the lanes are. The caller holds making.
func (l *loads) measureBusy() load.Report {
	lanes := l.worker.Lanes().Stats()
	answered, failed := l.worker.Ended()
	return l.meter.Measure(time.Since(l.began), load.Totals{
		Lanes: lanes.Lanes, Busy: lanes.Busy, Answered: answered, Failed: failed,
	}, lanes.Remaining)
}

// busyByType is the busy share by the type of the lanes.
func (l *loads) busyByType(r load.Report) map[string]float64 {
	if name := l.laneType(); name != "" {
		return map[string]float64{name: r.Busy}
	}
	return map[string]float64{}
}

// latestReport returns the last report. If that is older than keepReport and nobody else does, it
// makes a new one.
func (l *loads) latestReport() *loadReport {
	former := l.report.Load()
	if time.Since(former.made) < keepReport || !l.making.TryLock() {
		return former
	}
	defer l.making.Unlock()
	measured := l.measureBusy()
	message := &orcav3.OrcaLoadReport{
		ApplicationUtilization: measured.Utilization, RpsFractional: measured.QPS,
		Eps: measured.EPS, Utilization: l.busyByType(measured),
	}
	// Neither fails: the message has numbers and a valid name.
	binary, _ := proto.Marshal(message)
	text, _ := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	r := &loadReport{
		number: former.number + 1, made: time.Now(),
		trailer: metadata.MD{loadTrailer: {string(binary)}},
		header:  "JSON " + string(text),
	}
	l.report.Store(r)
	return r
}

// toCall adds the report to the trailers of a gRPC answer, if the connection has not had it.
func (l *loads) toCall(ctx context.Context) {
	r := l.latestReport()
	if had := secure.Mark(ctx); had != nil && had.Swap(r.number) != r.number {
		_ = grpc.SetTrailer(ctx, r.trailer) // fails if the client has gone
	}
}

// toResponse adds the report to the headers of an HTTP answer.
func (l *loads) toResponse(h http.Header) { h.Set(loadHeader, l.latestReport().header) }

// ServerMetrics implements [orca.ServerMetricsProvider], for clients that ask for reports beside
// their calls.
func (l *loads) ServerMetrics() *orca.ServerMetrics {
	l.making.Lock()
	r := l.measureBusy()
	l.making.Unlock()
	return &orca.ServerMetrics{
		CPUUtilization: -1, MemUtilization: -1, AppUtilization: r.Utilization, QPS: r.QPS,
		EPS: r.EPS, Utilization: l.busyByType(r),
	}
}

// laneType is the type of this agent's lanes by the members' view, "" if the agent is not in it.
func (s *Server) laneType() string {
	for _, m := range s.config.Members.View().GetMembers() {
		if m.AgentName() == s.config.Name {
			return strings.ToValidUTF8(string(m.LaneType()), "?")
		}
	}
	return ""
}
