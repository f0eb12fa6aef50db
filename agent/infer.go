package agent

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// A servedModel is what the repository holds of a version while it is loaded.
type servedModel struct {
	runtime.Model
	profile  string // what estimates of its execution time are kept by
	checksum string // as the function of that name has it
	counts   *versionMetrics
}

// infer is the one way a query takes, whatever protocol it came by. It owns
// req, whose inputs are released when it returns; the caller releases the
// response. arrival is when the query began to come in.
func (a *Agent) infer(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response, error) {
	defer req.Release()
	if !a.alone.Load() {
		return a.pass(ctx, req, arrival)
	}
	loaded, err := a.acquire(req.Model, req.Version)
	if err != nil {
		a.metrics.failedWithoutVersion(a.knownModel(req.Model), err)
		return nil, err
	}
	defer loaded.Release()
	counts := loaded.Model.counts

	q, err := validate(loaded.Version, req)
	if err != nil {
		counts.failed(err, time.Since(arrival))
		return nil, err
	}
	result, err := a.execute(ctx, loaded, q, execution{timeout: req.Timeout, arrival: arrival, lane: -1})
	if err != nil {
		counts.failed(err, time.Since(arrival))
		return nil, err
	}
	counts.answered(q.batchSize, time.Since(arrival), result.Queue, result.Execution, loaded.Version.Config.QoSTarget)
	a.station.completedAlone(loaded.Version, q.batchSize, queryBytes(req), arrival, result)
	return respond(loaded.Version, req, q, result), nil
}

// pass has the fleet answer a query, this agent among its workers. It does not
// release req.
func (a *Agent) pass(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response, error) {
	resp, err := a.gateway.Infer(passTrace(ctx), req, arrival)
	err = a.whileStarting(err)
	if err != nil {
		a.metrics.passed.WithLabelValues(classify(err).Reason).Inc()
		return nil, err
	}
	a.metrics.passedAnswered.Inc()
	return resp, nil
}

// whileStarting is err, unless it says that there is no such model and this agent has
// only just started: it may not know of all yet.
func (a *Agent) whileStarting(err error) error {
	if err == nil || a.settled.Load() || classify(err).Code != codes.NotFound {
		return err
	}
	return fmt.Errorf("this agent is starting and may not know all models: %w", models.ErrNotReady)
}

// passTrace has the trace context of a call go along to the worker. Where this agent
// makes spans, its own takes the place of that.
func passTrace(ctx context.Context) context.Context {
	for _, name := range tracing.Headers {
		for _, value := range headers(ctx, name) {
			ctx = metadata.AppendToOutgoingContext(ctx, name, value)
		}
	}
	return ctx
}

// An execution says how a query is run.
type execution struct {
	timeout     time.Duration // of the query, since its arrival; 0: it gives none
	arrival     time.Time
	lane        int // preferred; -1: any
	reservation *runtime.Reservation
}

// execute has this machine run a query that was validated: the worker's part
// of a query's way.
func (a *Agent) execute(ctx context.Context, loaded *models.Loaded[*servedModel], q query, e execution) (*runtime.Result, error) {
	config := &loaded.Version.Config
	_, given := ctx.Deadline() // holds if it is earlier
	e.timeout = oip.Timeout(e.timeout, given, config.Deadline)
	result, err := a.lanes.Do(ctx, runtime.Query{
		Model:       loaded.Model,
		Inputs:      q.inputs,
		BatchSize:   q.batchSize,
		Profile:     loaded.Model.profile,
		Arrival:     e.arrival,
		QoSTarget:   config.QoSTarget,
		Deadline:    e.arrival.Add(e.timeout),
		RejectLate:  config.Late == models.LateReject,
		Lane:        e.lane,
		Reservation: e.reservation,
	})
	if err == nil {
		a.traceExecution(ctx, loaded, q, e.arrival, result)
	}
	return result, err
}

// respond is the answer to req: the outputs asked for, in that order.
func respond(v *models.Version, req *oip.Request, q query, result *runtime.Result) *oip.Response {
	resp := &oip.Response{
		Model:   v.Model,
		Version: strconv.FormatInt(v.Number, 10),
		ID:      req.ID,
		Outputs: make([]tensor.Tensor, len(q.outputs)),
	}
	for i, position := range q.outputs {
		resp.Outputs[i] = result.Outputs[position]
	}
	resp.OnRelease(result.Release)
	return resp
}

// acquire takes a model's version for one query; an empty version is the
// newest that is ready.
func (a *Agent) acquire(model, version string) (*models.Loaded[*servedModel], error) {
	number, err := parseVersion(model, version)
	if err != nil {
		return nil, err
	}
	return a.repository.Acquire(model, number)
}

// queryBytes is what a query takes of the agent's memory while it is in it.
func queryBytes(req *oip.Request) int64 {
	n := int64(0)
	for i := range req.Inputs {
		n += int64(len(req.Inputs[i].Data))
	}
	return n
}

// answerBytes is what an answer takes of the agent's memory until it is sent.
func answerBytes(resp *oip.Response) int64 {
	n := int64(0)
	for i := range resp.Outputs {
		n += int64(len(resp.Outputs[i].Data))
	}
	return n
}
