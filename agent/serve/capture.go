package serve

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/muster-serve/muster/agent/capture"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

// beginCapture returns the query if it is one of those that are kept, else nil. finishCapture must
// be called then. It does not allocate for others.
func (s *Server) beginCapture(ctx context.Context, req *oip.Request, arrival time.Time) *capture.Query {
	if s.config.Captures == nil {
		return nil
	}
	rule := s.config.Gateway.CaptureRule(req.Model, req.Version)
	if !s.config.Captures.Chooses(rule.Capture) {
		return nil
	}
	q := &capture.Query{
		Rule:    capture.Rule{Capture: rule.Capture, Roles: rule.Roles, IDBounds: rule.IDBounds},
		Request: req.Share(), Arrival: arrival, Deadline: req.Timeout,
		Client: Callers{s.config.Guard}.Client(ctx),
	}
	if deadline, ok := ctx.Deadline(); ok {
		if left := deadline.Sub(arrival); q.Deadline == 0 || left < q.Deadline {
			q.Deadline = left
		}
	}
	return q
}

// finishCapture hands a query over with how it ended. q may be nil. It copies what it keeps of resp.
func (s *Server) finishCapture(q *capture.Query, req *oip.Request, resp *oip.Response, err error,
	target time.Duration) {
	if q == nil {
		return
	}
	q.Latency, q.Outcome, q.Agent = time.Since(q.Arrival), "ok", req.Agent
	answeredBy := req.Tried
	if err != nil {
		q.Outcome = oip.ReasonAfter(outcome.Of(err).Reason, q.Latency, target)
		if answeredBy != 0 {
			q.Version = strconv.FormatInt(answeredBy, 10)
		}
		missed, _ := client.MissedBy(req.Model, q.Outcome, req.Late)
		q.Cause = string(missed.Cause)
	} else {
		q.Version = resp.Version
		answeredBy, _ = strconv.ParseInt(resp.Version, 10, 64)
		if resp.Variant != "" {
			q.Version = resp.Variant + "/" + resp.VariantVersion
		}
		missed, _ := client.MissedBy(req.Model, "", req.Late)
		q.Cause = string(missed.Cause)
		q.Outputs = resp.Outputs // which Keep drops at once, if there are too many bytes
		if req.Bytes()+resp.Bytes() <= capture.MaxQueryBytes {
			q.Outputs = keptOutputs(q.Rule, resp)
		}
	}
	q.Arm = s.config.Gateway.Arm(req.Model, answeredBy)
	s.config.Captures.Keep(q)
}

// keptOutputs copies the outputs of an answer that the rule does not leave out.
func keptOutputs(rule capture.Rule, resp *oip.Response) (kept []tensor.Tensor) {
	for _, t := range resp.Outputs {
		if !slices.Contains(rule.GetLeaveOut(), t.Name) {
			t.Data, t.Shape = slices.Clone(t.Data), slices.Clone(t.Shape)
			kept = append(kept, t)
		}
	}
	return kept
}
