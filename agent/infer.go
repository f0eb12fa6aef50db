package agent

import (
	"context"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// A servedModel is what the repository holds of a version while it is loaded.
type servedModel struct {
	runtime.Model
	profile  string // what estimates of its execution time are kept by
	checksum string // of its files
	counts   *versionMetrics
}

// infer is the one way a query takes, whatever protocol it came by. It owns
// req, whose inputs are released when it returns; the caller releases the
// response. arrival is when the query began to come in.
func (a *Agent) infer(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response, error) {
	defer req.Release()
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
	result, err := a.execute(ctx, loaded, q, req.Timeout, arrival)
	if err != nil {
		counts.failed(err, time.Since(arrival))
		return nil, err
	}
	counts.answered(q.batchSize, time.Since(arrival), result.Queue, result.Execution, loaded.Version.Config.QoSTarget)
	return respond(loaded.Version, req, q, result), nil
}

// execute has this machine run a query that was validated: the worker's part
// of a query's way. The gateway's part is what infer does around it; with one
// agent in the cluster there is nowhere else to send a query.
func (a *Agent) execute(ctx context.Context, loaded *models.Loaded[*servedModel], q query, timeout time.Duration, arrival time.Time) (*runtime.Result, error) {
	config := &loaded.Version.Config
	if _, given := ctx.Deadline(); timeout <= 0 && !given {
		timeout = config.Deadline
	}
	var deadline time.Time // ctx has its own, if any
	if timeout > 0 {
		deadline = arrival.Add(timeout)
	}
	return a.lanes.Do(ctx, runtime.Query{
		Model:      loaded.Model,
		Inputs:     q.inputs,
		BatchSize:  q.batchSize,
		Profile:    loaded.Model.profile,
		Arrival:    arrival,
		QoSTarget:  config.QoSTarget,
		Deadline:   deadline,
		RejectLate: config.Late == models.LateReject,
	})
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
	number := int64(0)
	if version != "" {
		var err error
		if number, err = strconv.ParseInt(version, 10, 64); err != nil || number <= 0 {
			return nil, invalid("version %q of model %q, want a whole number above 0", version, model)
		}
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
