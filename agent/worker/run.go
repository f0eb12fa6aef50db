package worker

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// A Loaded version is held by whoever has acquired it, until it releases it.
type Loaded = models.Loaded[*Model]

// A Model is what the repository holds of a version while it is loaded.
type Model struct {
	runtime.Model
	profile  names.ModelKey // what estimates of its execution time are kept by
	checksum string         // as the function of that name has it
	counts   *versionMetrics
}

// Infer has this machine run a query that came to this agent, which is alone in its fleet. It owns
// req, whose inputs are released when it returns; the caller releases the response. arrival is when
// the query began to come in.
func (w *Worker) Infer(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response,
	error) {
	defer req.Release()
	loaded, err := w.Acquire(req.Model, req.Version)
	if err != nil {
		w.Failed(w.known(req.Model), err)
		return nil, err
	}
	defer loaded.Release()
	counts := loaded.Model.counts

	q, err := validate(loaded.Version, req)
	if err != nil {
		counts.failed(err, time.Since(arrival))
		return nil, err
	}
	result, err := w.execute(ctx, loaded, q, execution{
		timeout: req.Timeout, arrival: arrival, lane: -1,
	})
	if err != nil {
		counts.failed(err, time.Since(arrival))
		return nil, err
	}
	counts.answered(q.batchSize, time.Since(arrival), result.Queue, result.Execution,
		loaded.Version.Config.QoSTarget)
	w.completedAlone(loaded.Version, q.batchSize, req.Bytes(), arrival, result)
	return respond(loaded.Version, req, q, result), nil
}

// known is model, or "" if this agent has none of that name.
func (w *Worker) known(model string) string {
	for _, status := range w.repository.Index() {
		if status.Model == model {
			return model
		}
	}
	return ""
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
func (w *Worker) execute(ctx context.Context, loaded *Loaded, q query,
	e execution) (*runtime.Result, error) {
	config := &loaded.Version.Config
	_, given := ctx.Deadline() // holds if it is earlier
	e.timeout = oip.Timeout(e.timeout, given, config.Deadline)
	result, err := w.lanes.Do(ctx, runtime.Query{
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
		w.traceExecution(ctx, loaded, q, e.arrival, result)
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

// Acquire takes a model's version for one query; an empty version is the
// newest that is ready.
func (w *Worker) Acquire(model, version string) (*Loaded, error) {
	number, err := ParseVersion(model, version)
	if err != nil {
		return nil, err
	}
	return w.repository.Acquire(model, number)
}

// traceExecution makes the spans of a query that has just been run, of its wait and its run.
func (w *Worker) traceExecution(ctx context.Context, loaded *Loaded, q query, arrival time.Time,
	result *runtime.Result) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	v, info, ended := loaded.Version, w.config.Executor.Info(), time.Now()
	span.SetAttributes(tracing.Late.Bool(ended.Sub(arrival) > v.Config.QoSTarget))
	started := ended.Add(-result.Execution)
	_, queue := w.config.Tracer.Start(ctx, tracing.Queue,
		trace.WithTimestamp(started.Add(-result.Queue)))
	queue.End(trace.WithTimestamp(started))
	_, execute := w.config.Tracer.Start(ctx, tracing.Execute, trace.WithTimestamp(started),
		trace.WithAttributes(
			tracing.Model.String(v.Model), tracing.Version.String(strconv.FormatInt(v.Number, 10)),
			tracing.BatchSize.Int(q.batchSize),
			tracing.Lane.Int(result.Lane),
			tracing.InstanceType.String(string(w.config.InstanceType())),
			tracing.Executor.String(info.Executor), tracing.Provider.String(string(info.Provider))))
	execute.End(trace.WithTimestamp(ended))
}

// load is the repository's loader.
func (w *Worker) load(ctx context.Context, v *models.Version) (*Model, error) {
	version := strconv.FormatInt(v.Number, 10)
	start := time.Now()
	model, err := w.config.Executor.Load(ctx, v)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	w.config.Log.Info("model loaded, warming up", "model", v.Model, "version", v.Number, "load_ms",
		took.Milliseconds())
	sum, err := w.sums.checksum(ctx, v)
	if err != nil {
		return nil, errors.Join(err, model.Close())
	}
	start = time.Now()
	if err := runtime.Warm(ctx, w.lanes, model, v); err != nil {
		return nil, errors.Join(err, model.Close())
	}
	w.metrics.loadDuration.WithLabelValues(v.Model, version).Observe(took.Seconds())
	w.metrics.warmUpDuration.WithLabelValues(v.Model, version).Observe(time.Since(start).Seconds())
	w.config.Loaded(v)
	w.metrics.qosTarget.WithLabelValues(v.Model, version).Set(v.Config.QoSTarget.Seconds())
	profile := names.NewModelKey(v.Model, v.Number)
	w.estimates.loaded(profile, sum)
	return &Model{
		Model:    model,
		profile:  profile,
		checksum: sum,
		counts:   w.metrics.version(v.Model, v.Number),
	}, nil
}
