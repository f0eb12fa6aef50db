package agent

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/models"
)

// infer is the one way a query takes, whatever protocol it came by. It owns
// req, whose inputs are released when it returns; the caller releases the
// response. arrival is when the query began to come in.
func (a *Agent) infer(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response, error) {
	if !a.alone.Load() {
		defer req.Release()
		return a.pass(ctx, req, arrival)
	}
	return a.worker.Infer(ctx, req, arrival)
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

// answerBytes is what an answer takes of the agent's memory until it is sent.
func answerBytes(resp *oip.Response) int64 {
	n := int64(0)
	for i := range resp.Outputs {
		n += int64(len(resp.Outputs[i].Data))
	}
	return n
}
