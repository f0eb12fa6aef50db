package serve

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/models"
)

// infer is the one way a query takes, whatever protocol it came by. It owns
// req, whose inputs are released when it returns; the caller releases the
// response. arrival is when the query began to come in.
func (s *Server) infer(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response,
	error) {
	if !s.alone.Load() {
		defer req.Release()
		return s.pass(ctx, req, arrival)
	}
	return s.config.Worker.Infer(ctx, req, arrival)
}

// pass has the fleet answer a query, this agent among its workers. It does not
// release req.
func (s *Server) pass(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response,
	error) {
	resp, err := s.config.Gateway.Infer(passTrace(ctx), req, arrival)
	err = s.whileStarting(err)
	if err != nil {
		s.metrics.passed.WithLabelValues(outcome.Of(err).Reason).Inc()
		return nil, err
	}
	s.metrics.passedAnswered.Inc()
	return resp, nil
}

// whileStarting is err, unless it says that there is no such model and this agent has
// only just started: it may not know of all yet.
func (s *Server) whileStarting(err error) error {
	if err == nil || s.settled.Load() || outcome.Of(err).Code != codes.NotFound {
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

// Follow keeps the gateway as the view of the fleet says, until ctx ends. Loads the gateway gets
// as they are heard; here only those of members that it may not have known when they were.
func (s *Server) Follow(ctx context.Context) {
	seen := map[*control.Member]bool{}
	for {
		changed, led := s.config.Members.ViewChanged(), s.config.Leading.Changed()
		v := s.config.Members.View()
		s.config.Gateway.SetView(v)
		s.config.Gateway.SetLoads(s.config.Members.Loads())
		seen = s.allowFleet(v, seen)
		s.alone.Store(len(v.Members) == 1)
		select {
		case <-changed:
		case <-led:
		case <-ctx.Done():
			return
		}
	}
}

// allowFleet has queries accepted that are as large as those of any model in
// the fleet may be. It returns the members, and passes over those that it did last time.
func (s *Server) allowFleet(v *control.View,
	seen map[*control.Member]bool) map[*control.Member]bool {
	now := make(map[*control.Member]bool, len(v.Members))
	for _, member := range v.Members {
		now[member] = true
		if seen[member] {
			continue
		}
		for _, m := range member.Models {
			s.allowLargest(portsOf(m.Metadata.GetInputs()), int(m.LargestBatchSize))
		}
	}
	return now
}
