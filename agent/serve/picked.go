package serve

import (
	"context"
	"errors"
	"time"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/agent/picker"
	"github.com/muster-serve/muster/api/oip"
)

// newPicker returns what answers gateways that ask where requests should go.
func (s *Server) newPicker() *picker.Picker {
	callers := Callers{s.config.Guard}
	return picker.New(picker.Config{
		Infer: func(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response, error) {
			req.LoadShare = callers.LoadShare(ctx)
			return s.config.Gateway.Infer(ctx, req, arrival)
		},
		Own: s.config.Members.Own, MayQuery: callers.MayQuery,
		Refuse: s.refusePick, Signer: s.config.Guard, Registry: s.config.Registry,
	})
}

// refusePick counts a query that no agent gets, and says how it is refused.
func (s *Server) refusePick(ctx context.Context, req *oip.Request, arrival time.Time,
	err error) picker.Refusal {
	err = s.whileStarting(err)
	model, version, target := s.askedVersion(req.Model, req.Version)
	s.config.Counts.Arrived(model, version)
	s.config.Counts.Failed(model, version, err, time.Since(arrival), target, req.TrialSize)
	err = s.hideNames(ctx, err)
	f := outcome.Of(err)
	return picker.Refusal{
		Code: f.Code, HTTPStatus: f.HTTPStatus, Message: messageOf(err), RetryAfter: f.RetryAfter,
	}
}

// runPicked runs a query that a picker has assigned to this agent. ran is false of any other query,
// and of one that this agent does not run now: the gateway has it matched. It does not own req.
func (s *Server) runPicked(ctx context.Context, req *oip.Request, arrival time.Time,
	answers *oip.Charge) (resp *oip.Response, ran bool, err error) {
	value := firstHeader(ctx, picker.TicketHeader)
	if value == "" {
		return nil, false, nil
	}
	ticket, err := s.turnstile.Open(value, time.Now())
	if err != nil {
		s.config.Log.Debug("a ticket is not taken; the query is matched again", "error", err)
		return nil, false, nil
	}
	if ticket.Left > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ticket.Left)
		defer cancel()
	}
	attempt := req.Share()
	attempt.Model, attempt.Version, attempt.LeastAccuracy = ticket.Model, ticket.Version, 0
	compare := s.compareAnswer(attempt)
	resp, err = s.config.Worker.Attempt(ctx, ticket.Attempt, "", ticket.Merge, attempt, arrival,
		answers)
	compare(resp, err)
	if errors.Is(err, outcome.ErrRefused) {
		return nil, false, nil
	}
	if family := s.config.Gateway.Family(req.Model); family != nil && resp != nil {
		for _, v := range family.Variants {
			if v.GetName() == ticket.Model {
				resp.AnsweredBy(req.Model, v.GetAccuracy())
			}
		}
	}
	return resp, true, err
}
