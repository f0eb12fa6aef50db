package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// A LoadedVersion is a loaded version that Acquire has returned. The version stays loaded until the
// caller calls Release.
type LoadedVersion = models.LoadedVersion[*LoadedModel]

// A LoadedModel is a loaded version as the repository holds it.
type LoadedModel struct {
	runtime.Model
	runs     *runtime.Spread // as the lanes of its partition run it
	of       *Worker
	profile  names.ModelKey // its name in estimates, "ncf/1"
	checksum *checksum
	counts   *versionMetrics
	baseline runBaseline
}

// Close closes the sessions of the lanes, and the model.
func (m *LoadedModel) Close() error {
	m.checksum.cancel()
	return m.of.closeModel(m.runs)
}

// Infer runs a query on this agent's lanes and returns its answer. It is for an agent that is alone
// in its fleet: nobody else has decided that the query is to run, so the lanes do. See
// [client.Own.InferAlone] for its arguments and what it sets of req; the caller must release the
// response. A query whose answer req.Answer does not take has failed. Infer blocks until the query
// is answered, has failed or ctx ends.
func (w *Worker) Infer(ctx context.Context, req *oip.Request, id control.Attempt, arrival time.Time,
	canary int64) (*oip.Response, error) {
	loaded, err := w.acquireAlone(req, canary)
	if err != nil {
		return nil, err
	}
	defer loaded.Release()
	v, counts := loaded.Version, loaded.Model.counts
	req.Tried = v.Number
	began, target := time.Now(), v.Config.QoSTarget
	var ran executedRun
	recordLate := func(err error) {
		now := time.Now()
		total := now.Sub(arrival)
		if err == nil && total <= target {
			return
		}
		late := min(max(0, began.Sub(arrival)), total)
		req.Late = &lateness.Record{
			Target: target, Agent: string(w.config.Fleet.Own().AgentName()),
			Parts: w.spentOn(&ran, 0, 0, total-late, now),
		}
		req.Late.Parts[lateness.ArrivedLate] += late
		w.moveLost(req.Late, lateness.ArrivedLate, arrival, began)
	}
	failed := func(err error) (*oip.Response, error) {
		recordLate(err)
		counts.failedHere(err, time.Since(arrival))
		return nil, err
	}

	q, err := validate(v, req)
	if err != nil {
		return failed(err)
	}
	req.TrialSize = q.batchSize // not before: a query that is not valid is its client's fault
	ran, err = w.executeQuery(ctx, loaded, req, q, execution{
		timeout: req.Timeout, arrival: arrival, lane: -1, alone: true,
		answers: req.Answer,
	})
	w.completedAlone(v, id, q, req.Bytes(), arrival, ran, err)
	if err != nil {
		return failed(err)
	}
	recordLate(nil)
	counts.countAnswered(time.Since(arrival), target)
	counts.answeredWith(ran.nonFinite)
	return ran.resp, nil
}

// acquireAlone is Acquire for a query of this agent, which is alone. It takes the canary if that is
// not 0 and serves.
func (w *Worker) acquireAlone(req *oip.Request, canary int64) (*LoadedVersion, error) {
	if canary != 0 {
		if loaded, err := w.repository.Acquire(req.Model, canary); err == nil {
			return loaded, nil
		}
	}
	return w.Acquire(req.Model, req.Version)
}

// An execution holds the conditions under which a query is run.
type execution struct {
	timeout     time.Duration // the query's own, counted from its arrival; 0: none
	arrival     time.Time
	lane        int  // the preferred lane; -1: any
	alone       bool // the agent is alone: no other one has decided that the query runs
	reservation *runtime.Reservation
	group       merge.GroupID // the queries with which a leader wants it to run
	answers     *oip.Charge   // counts the bytes of the answer; nil: nobody does
}

// An executedRun is a query that has run, with its answer.
type executedRun struct {
	result    *runtime.Result                    // nil: it has not run
	resp      *oip.Response                      // its release releases the result; nil: the client cannot have it
	spent     [lateness.Components]time.Duration // on the run
	nonFinite tensor.NonFinite
}

// executeQuery queues the validated query q of req for a lane, runs it, makes its spans and its
// answer. It blocks until then. The caller must release the answer. If the answer cannot be encoded
// as the client asks, the query has run and has failed: execute returns both, and the error wraps
// oip.ErrUnencodable. If there is no room for the answer, it counts as not run: another agent may
// have room.
func (w *Worker) executeQuery(ctx context.Context, loaded *LoadedVersion, req *oip.Request,
	q validatedRequest, e execution) (executedRun, error) {
	config := &loaded.Version.Config
	_, given := ctx.Deadline() // lanes.Do respects ctx's deadline if it is earlier
	e.timeout = oip.Timeout(e.timeout, given, config.Deadline)
	result, err := w.lanes.Do(ctx, runtime.Query{
		Model:       loaded.Model.runs,
		Inputs:      q.inputs,
		BatchSize:   q.batchSize,
		Work:        w.estimates.sizeOf(loaded, q.batchSize, q.size),
		Users:       q.size.Users,
		Values:      q.size.Values,
		Roles:       loaded.Version.Roles,
		Profile:     loaded.Model.profile,
		Arrival:     e.arrival,
		QoSTarget:   config.QoSTarget,
		Deadline:    e.arrival.Add(e.timeout),
		RejectLate:  config.Late == models.LateReject,
		Lane:        e.lane,
		Reservation: e.reservation,
		Refuse:      e.alone,
		Divide:      e.alone,

		Merge: mergingOf(loaded), LargestBatch: config.LargestBatchSize, Group: e.group,
	})
	if err != nil {
		var cut *runtime.CutError
		if errors.As(err, &cut) {
			w.estimates.observeCut(loaded.Model.profile,
				w.estimates.sizeOf(loaded, q.batchSize, q.size), cut.After)
		}
		return executedRun{}, err
	}
	w.traceExecution(ctx, loaded, q, e.arrival, result)
	if r := loaded.Version.Roles; r != nil {
		if err := r.Answer(result.Outputs, q.size); err != nil {
			result.Release()
			return executedRun{}, fmt.Errorf("run %s: %w", loaded.Version, err)
		}
	}
	ran := executedRun{
		result: result, resp: w.makeResponse(loaded.Version, req, q, result),
		spent: w.noteRun(loaded.Model, q.batchSize, result, time.Now()),
	}
	if err := req.CheckAnswer(ran.resp.Outputs); err != nil {
		ran.resp.Release()
		ran.resp = nil
		return ran, err
	}
	if err := e.answers.AtLeast(ran.resp.Bytes()); err != nil {
		ran.resp.Release()
		return executedRun{}, err
	}
	loaded.Model.counts.countRun(q.batchSize, result)
	if !result.Joined { // once for all queries that ran as one
		share := w.lanes.LaneShare(loaded.Version.Model) / float64(max(1, result.Divided))
		w.costs.noteRun(loaded.Version.Model, result.Execution, share, time.Now())
	}
	for i := range ran.resp.Outputs {
		ran.nonFinite = max(ran.nonFinite, ran.resp.Outputs[i].NonFinite())
	}
	return ran, nil
}

// mergingOf returns how queries of a version run with others.
func mergingOf(loaded *LoadedVersion) names.MergePolicy {
	if m, ok := loaded.Model.Model.(interface{ MergesUsers() bool }); ok &&
		loaded.Version.Roles != nil && !m.MergesUsers() {
		return names.MergeNone
	}
	return loaded.Version.Merging()
}

// makeResponse returns the answer to req, with the outputs that it asks for, in its order.
// Releasing the answer releases the result.
func (w *Worker) makeResponse(v *models.Version, req *oip.Request, q validatedRequest,
	result *runtime.Result) *oip.Response {
	resp := &oip.Response{
		Model:    v.Model,
		Version:  strconv.FormatInt(v.Number, 10),
		ID:       req.ID,
		Outputs:  make([]tensor.Tensor, len(q.outputs)),
		Emulated: w.config.Executor.Info().Executor == "emulated",
	}
	for i, position := range q.outputs {
		resp.Outputs[i] = result.Outputs[position]
	}
	resp.OnRelease(result.Release)
	return resp
}

// Acquire returns a version of a model for one query; version "" is the newest that is ready. The
// caller must release it. The error wraps models.ErrNotFound, models.ErrNotReady or
// outcome.ErrInvalid.
func (w *Worker) Acquire(model, version string) (*LoadedVersion, error) {
	number, err := ParseVersion(model, version)
	if err != nil {
		return nil, err
	}
	return w.repository.Acquire(model, number)
}

// traceExecution makes two spans of a query that has just run: one for its wait and one for its
// execution.
func (w *Worker) traceExecution(ctx context.Context, loaded *LoadedVersion, q validatedRequest,
	arrival time.Time, result *runtime.Result) {
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
			tracing.InstanceType.String(string(w.config.Host.InstanceType())),
			tracing.Executor.String(info.Executor), tracing.Provider.String(string(info.Provider))))
	execute.End(trace.WithTimestamp(ended))
}

// load is the repository's loader: it loads and warms up a version, and computes its checksum.
// While the agent starts alone, a version serves before its checksum is known.
func (w *Worker) load(ctx context.Context, v *models.Version) (_ *LoadedModel, err error) {
	version := strconv.FormatInt(v.Number, 10)
	start := time.Now()
	if _, err := w.partitionOf(v); err != nil {
		return nil, err
	}
	ctx = w.lanes.Considerate(ctx)
	late := w.startsAlone()
	sum := w.newChecksum(ctx, v, late)
	var runs *runtime.Spread
	defer func() {
		if err == nil {
			return
		}
		if sum.cancel(); runs != nil {
			err = errors.Join(err, w.closeModel(runs))
		}
	}()
	load := func() {
		var model runtime.Model
		if model, err = w.config.Executor.Load(ctx, v); err != nil {
			return
		}
		runs = runtime.NewSpread(model)
		w.spreads.Store(runs, v.Model)
		_, err = w.placeVersion(ctx, v, runs)
	}
	if w.lanes.Calm() {
		sum.begin() // a load uses one core, and nobody is disturbed
		load()
	} else {
		atLowPriority(load)
	}
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	w.config.Log.Info("model loaded, warming up", "model", v.Model, "version", v.Number, "load_ms",
		took.Milliseconds())
	if v.Config.Merge.IsFormer() {
		w.config.Log.Warn("this version has no such merge policy; the agent uses the default",
			"model", v.Model, "version", v.Number, "merge", string(v.Config.Merge), "default",
			string(v.Config.Merging()))
	}
	sum.begin()
	if late = late && w.startsAlone(); !late {
		err = sum.wait(ctx)
	}
	if err == nil {
		start = time.Now()
		err = w.warmUp(ctx, v, runs)
	}
	if err != nil {
		return nil, err
	}
	if err := w.checkRows(ctx, v, runs); err != nil {
		return nil, err
	}
	w.metrics.loadDuration.WithLabelValues(v.Model, version).Observe(took.Seconds())
	w.metrics.warmUpDuration.WithLabelValues(v.Model, version).Observe(time.Since(start).Seconds())
	for _, f := range w.onLoad {
		f(v)
	}
	w.metrics.qosTarget.WithLabelValues(v.Model, version).Set(v.Config.QoSTarget.Seconds())
	w.metrics.qosPercentile.WithLabelValues(v.Model, version).Set(v.Config.QoSPercentile)
	profile := names.NewModelKey(v.Model, v.Number)
	if late {
		w.summing.Go(func() { w.tellChecksum(profile, sum) })
	} else {
		w.estimates.noteLoaded(profile, sum.value)
	}
	counts := w.metrics.versionMetrics(v.Model, v.Number, v.Config.QoSTarget)
	w.metrics.rateVersion(counts, &v.Config)
	return &LoadedModel{
		Model:    runs.Model,
		runs:     runs,
		of:       w,
		profile:  profile,
		checksum: sum,
		counts:   counts,
	}, nil
}

// warmUp warms up a version on the lanes of its model. If these are replaced meanwhile, it does so
// on those that follow.
func (w *Worker) warmUp(ctx context.Context, v *models.Version, runs *runtime.Spread) error {
	part, err := w.placeVersion(ctx, v, runs)
	for err == nil {
		warm := runtime.Warm(ctx, part.Lanes, runs.On(part.Partition), v)
		var shapes *runtime.ShapeError
		if errors.As(warm, &shapes) {
			w.warnOfShapes(v, shapes)
			return nil
		}
		if warm != nil && !errors.Is(warm, runtime.ErrDraining) {
			return warm
		}
		before := part.Partition
		if part, err = w.placeVersion(ctx, v, runs); err == nil && part.Partition == before {
			return warm
		}
	}
	return err
}

// checkRows has rows of a version whose graph does not prove that they are independent, as its
// settings say, run together and apart. If that changes answers, queries are neither split nor
// merged, and the log has an event.
func (w *Worker) checkRows(ctx context.Context, v *models.Version, runs *runtime.Spread) error {
	if v.Unproven == "" || len(v.Config.WarmUp) == 0 { // nothing is to run before a query
		return nil
	}
	part, err := w.placeVersion(ctx, v, runs)
	if err != nil {
		return err
	}
	why, err := runtime.CheckRows(ctx, part.Lanes, runs.On(part.Partition), v)
	switch {
	case errors.Is(err, runtime.ErrDraining): // other lanes have followed: as unsure as before
	case err != nil:
		return fmt.Errorf("check rows of %s: %w", v.Path, err)
	case why != "":
		v.NoteMixing(why)
		w.config.Log.Warn("a model is not served as its model.yaml says", "model", v.Model, "version",
			v.Number, "why", "rows depend on one another, so that queries are neither split nor merged: "+
				why, "graph", v.Unproven, "settings", models.ConfigFile, "try", "rows_independent: false",
			"event", "families")
	}
	return nil
}

// warnOfShapes says that a version serves without being warm, and what would tell its shapes.
func (w *Worker) warnOfShapes(v *models.Version, failed *runtime.ShapeError) {
	advice := "list in warm_up the batch sizes that the model takes; with [] none runs"
	if len(failed.Open) > 0 {
		advice = fmt.Sprintf("give the sizes that it takes in inputs: [{name: %s, shape: [-1, ...]}]; "+
			"with warm_up: [] nothing runs", failed.Open[0])
	}
	w.config.Log.Warn(
		"the warm-up failed with shapes that the model leaves open; it serves all the same",
		"model", v.Model, "version", v.Number, "error", failed, "settings", models.ConfigFile, "try",
		advice)
}
