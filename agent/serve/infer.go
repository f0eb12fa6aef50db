package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/agent/picker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
)

// answerQuery answers a query that came to this agent by any protocol. It owns req, and releases
// its inputs when it returns; the caller must release the response. arrival is when the query began
// to arrive. answers, of Server.answers, counts the bytes of the answer from then on. infer blocks
// until the query is answered, has failed or ctx ends.
func (s *Server) answerQuery(ctx context.Context, req *oip.Request, arrival time.Time,
	answers *oip.Charge) (resp *oip.Response, err error) {
	defer req.Release()
	model, version, target := s.askedVersion(req.Model, req.Version)
	s.config.Counts.Arrived(model, version)
	req.Answer, req.LoadShare = answers, Callers{s.config.Guard}.LoadShare(ctx)
	kept := s.beginCapture(ctx, req, arrival)
	resp, ran, err := s.runPicked(ctx, req, arrival, answers)
	if !ran {
		resp, err = s.config.Gateway.Infer(ctx, req, arrival)
	}
	s.finishCapture(kept, req, resp, err, target)
	if err != nil {
		err = s.whileStarting(err)
		after := time.Since(arrival)
		s.config.Counts.Failed(model, cmp.Or(req.Tried, version), err, after, target, req.TrialSize)
		s.noteMissed(ctx, req, missedQuery{model: model, err: err, after: after, target: target})
	} else if req.Late != nil {
		s.noteMissed(ctx, req, missedQuery{
			model: model, version: resp.Version, after: time.Since(arrival), target: target,
		})
	}
	if err != nil {
		return nil, s.hideNames(ctx, err)
	}
	if err = answers.AtLeast(resp.Bytes()); err != nil {
		s.countUnsendable(ctx, req, resp.Version, err)
		resp.Release()
		resp = nil
	}
	return resp, s.hideNames(ctx, err)
}

// noteMissed counts a query of a client that was late, or has failed, by its cause. req and ctx are
// those of answerQuery.
func (s *Server) noteMissed(ctx context.Context, req *oip.Request, q missedQuery) {
	q.id, q.spent = req.ID, req.Late
	if q.version == "" {
		q.version = req.Version
	}
	s.config.Counts.countMissedQuery(ctx, &q)
}

// inferLocally has this agent's worker run a query of its gateway, which has no other agent to ask.
func (s *Server) inferLocally(ctx context.Context, req *oip.Request, id control.Attempt,
	arrival time.Time, canary int64) (*oip.Response, error) {
	compare := s.compareAnswer(req)
	resp, err := s.config.Worker.Infer(ctx, req, id, arrival, canary)
	compare(resp, err)
	return resp, err
}

// compareAnswer returns what takes the answer to a query that runs on this agent, to be compared
// with another version's if the model has one on trial. It must be called. req may be released
// before.
func (s *Server) compareAnswer(req *oip.Request) func(*oip.Response, error) {
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

// askedVersion returns the model and version that metrics name for a query that names the given
// ones, and the QoS target: "" for a model that nobody has, 0 for a version that no agent serves.
func (s *Server) askedVersion(model, version string) (string, int64, time.Duration) {
	if number, target, ok := s.config.Gateway.Version(model, version); ok {
		return model, number, target
	}
	if s.alone.Load() { // the view may not have yet what serves
		if loaded, err := s.config.Worker.Acquire(model, version); err == nil {
			defer loaded.Release()
			return model, loaded.Version.Number, loaded.Version.Config.QoSTarget
		}
	}
	return s.knownModel(model), 0, 0
}

// countRefusedEarly counts a query of a client, of the call with context ctx, that is refused with
// err before all of it is read. model and version are "" if they are not known.
func (s *Server) countRefusedEarly(ctx context.Context, model, version string, err error) {
	name, number := "", int64(0)
	if model != "" {
		name, number, _ = s.askedVersion(model, version)
	}
	s.config.Counts.Arrived(name, number)
	s.config.Counts.Failed(name, number, err, 0, 0, 0)
	s.config.Counts.countMissedQuery(ctx, &missedQuery{model: name, version: version, err: err})
}

// countUnsendable counts a query of the call with context ctx that was answered, by the given
// version, and whose answer is dropped with err.
func (s *Server) countUnsendable(ctx context.Context, req *oip.Request, by string, err error) {
	if s.config.Gateway.Family(req.Model) != nil {
		by = req.Version
	}
	model, version, _ := s.askedVersion(req.Model, by)
	s.config.Counts.Failed(model, version, err, 0, 0, req.TrialSize)
	s.config.Counts.countMissedQuery(ctx, &missedQuery{
		model: model, version: by, id: req.ID, err: err,
	})
}

// whileStarting returns err. If err says that no agent has the model but this agent is still
// loading its first models, it returns "not ready" instead; not if its own repository says so.
func (s *Server) whileStarting(err error) error {
	if s.config.Health.Settled() || errors.Is(err, models.ErrNotFound) ||
		outcome.Of(err).Code != codes.NotFound {
		return err
	}
	return fmt.Errorf("this agent is starting and may not know all models: %w", models.ErrNotReady)
}

// A transport reaches the members for this agent's gateway.
type transport struct{ client.Remote }

// NewTransport returns what reaches the members, for this agent's gateway and its shadows.
func NewTransport(ms *members.Members) client.Transport {
	return picker.Transport{Transport: transport{client.Remote{
		Dial: func(m *control.Member) (grpc.ClientConnInterface, error) {
			return ms.Dial(m.AgentName())
		},
	}}}
}

// Infer implements [client.Transport]. It passes the trace context of the client's call on.
func (t transport) Infer(ctx context.Context, to *control.Member, req *oip.Request,
	attempt *client.Attempt) (*oip.Response, error) {
	return t.Remote.Infer(passTrace(ctx), to, req, attempt)
}

// passTrace copies the trace context of a client's call to the gateway's call to a worker. If this
// agent makes spans, the gateway replaces it with its own span.
func passTrace(ctx context.Context) context.Context {
	for _, name := range tracing.Headers {
		for _, value := range headerValues(ctx, name) {
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
		seen = s.raiseSizeLimits(v, seen)
		s.alone.Store(len(v.Members) == 1)
		s.config.Health.publish(s.isFit)
		select {
		case <-changed:
		case <-led:
		case <-ctx.Done():
			return
		}
	}
}

// raiseSizeLimits raises the limit on a query's size to the largest that any model in the fleet
// allows. seen are the members handled by the last call, which it skips; it returns those to pass
// next time.
func (s *Server) raiseSizeLimits(v *control.View,
	seen map[*control.Member]bool) map[*control.Member]bool {
	now := make(map[*control.Member]bool, len(v.Members))
	for _, member := range v.Members {
		now[member] = true
		if seen[member] {
			continue
		}
		for _, m := range member.Models {
			s.allowLargest(members.PortsOf(m.Metadata.GetInputs()), int(m.LargestBatchSize),
				isFree(m))
		}
	}
	return now
}
