package serve

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/models"
)

// infer answers a query that came to this agent by any protocol. It owns req, and releases its
// inputs when it returns; the caller must release the response. arrival is when the query began to
// arrive. answers, of Server.answers, counts the bytes of the answer from then on. infer blocks until
// the query is answered, has failed or ctx ends.
func (s *Server) infer(ctx context.Context, req *oip.Request, arrival time.Time,
	answers *oip.Charge) (resp *oip.Response, err error) {
	if s.alone.Load() && s.config.Gateway.Family(req.Model) == nil &&
		!s.config.Gateway.Loadable(req.Model) {
		compare := s.comparing(req)
		resp, err = s.config.Worker.Infer(ctx, req, arrival, answers)
		compare(resp, err)
		return resp, s.unlisted(ctx, err)
	}
	defer req.Release()
	model, version, target := s.asked(req.Model, req.Version)
	s.config.Worker.Arrived(model, version)
	if resp, err = s.pass(ctx, req, arrival); err == nil {
		if err = answers.AtLeast(resp.Bytes()); err != nil {
			s.unsendable(req, resp.Version, err)
			resp.Release()
			resp = nil
		}
	} else {
		s.config.Worker.Failed(model, cmp.Or(req.Tried, version), err, time.Since(arrival), target,
			req.TrialSize)
	}
	return resp, s.unlisted(ctx, err)
}

// comparing returns what takes the answer to a query that runs on this agent, to be compared with
// another version's if the model has one on trial. It must be called. req may be released before.
func (s *Server) comparing(req *oip.Request) func(*oip.Response, error) {
	if !s.config.Shadows.Wants(req) {
		return func(*oip.Response, error) {}
	}
	shared := req.Share()
	return func(resp *oip.Response, err error) {
		if err == nil {
			s.config.Shadows.Answered(shared, resp)
		}
		shared.Release()
	}
}

// asked returns the model and version that metrics name for a query that names the given ones, and
// the QoS target: "" for a model that nobody has, 0 for a version that no agent serves.
func (s *Server) asked(model, version string) (string, int64, time.Duration) {
	if number, target, ok := s.config.Gateway.Version(model, version); ok {
		return model, number, target
	}
	return s.knownModel(model), 0, 0
}

// turnedAway counts a query of a client that is refused with err before all of it is read. model
// and version are "" if they are not known.
func (s *Server) turnedAway(model, version string, err error) {
	name, number := "", int64(0)
	if model != "" {
		name, number, _ = s.asked(model, version)
	}
	s.config.Worker.Arrived(name, number)
	s.config.Worker.Failed(name, number, err, 0, 0, 0)
}

// unsendable counts a query that was answered, by the given version, and whose answer is dropped with
// err.
func (s *Server) unsendable(req *oip.Request, by string, err error) {
	if s.config.Gateway.Family(req.Model) != nil {
		by = req.Version
	}
	model, version, _ := s.asked(req.Model, by)
	s.config.Worker.Failed(model, version, err, 0, 0, req.TrialSize)
}

// pass gives a query to the gateway, which has some agent of the fleet run it, perhaps this one. It
// does not release req.
func (s *Server) pass(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response,
	error) {
	resp, err := s.config.Gateway.Infer(passTrace(ctx), req, arrival)
	return resp, s.whileStarting(err)
}

// whileStarting returns err. If err says that the model does not exist but this agent is still
// loading its first models, it returns "not ready" instead.
func (s *Server) whileStarting(err error) error {
	if err == nil || s.settled.Load() || outcome.Of(err).Code != codes.NotFound {
		return err
	}
	return fmt.Errorf("this agent is starting and may not know all models: %w", models.ErrNotReady)
}

// passTrace copies the trace context of a client's call to the gateway's call to a worker. If this
// agent makes spans, the gateway replaces it with its own span.
func passTrace(ctx context.Context) context.Context {
	for _, name := range tracing.Headers {
		for _, value := range headers(ctx, name) {
			ctx = metadata.AppendToOutgoingContext(ctx, name, value)
		}
	}
	return ctx
}

// Follow passes every change of the members' view to the gateway, and blocks until ctx ends. The
// gateway gets loads as soon as they arrive; Follow passes them too, for members that the gateway
// did not know at that time.
func (s *Server) Follow(ctx context.Context) {
	seen := map[*control.Member]bool{}
	for {
		changed, led := s.config.Members.ViewChanged(), s.config.Leadership.Changed()
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

// allowFleet raises the limit on a query's size to the largest that any model in the fleet allows.
// seen are the members handled by the last call, which it skips; it returns those to pass next
// time.
func (s *Server) allowFleet(v *control.View,
	seen map[*control.Member]bool) map[*control.Member]bool {
	now := make(map[*control.Member]bool, len(v.Members))
	for _, member := range v.Members {
		now[member] = true
		if seen[member] {
			continue
		}
		for _, m := range member.Models {
			s.allowLargest(members.PortsOf(m.Metadata.GetInputs()), int(m.LargestBatchSize),
				isBatchless(m))
		}
	}
	return now
}
