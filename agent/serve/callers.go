package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/models"
)

// Callers identify the caller of a call by the call's context: a client or agent that the guard
// knows, or this agent itself, which may do everything. The methods may be called concurrently and
// do not block.
type Callers struct{ Guard *secure.Guard }

// Client returns the caller's name; "" if the caller has no name or is an agent of this fleet.
func (c Callers) Client(ctx context.Context) string {
	if isLocal(ctx) {
		return ""
	}
	return c.Guard.Client(ctx)
}

// Identity identifies the caller among all: clients and agents of this fleet by their names, and
// this agent itself; "" if the caller has no name.
func (c Callers) Identity(ctx context.Context) string {
	if isLocal(ctx) {
		return "this agent"
	}
	return c.Guard.Identity(ctx)
}

// MayQuery returns nil if the caller may query the model, else an error with the reason.
func (c Callers) MayQuery(ctx context.Context, model string) error {
	if isLocal(ctx) {
		return nil
	}
	return c.Guard.MayQuery(ctx, model)
}

// LoadShare is the share of the agents that may hold models only because the caller asks for them;
// 0: it has no right to have models loaded.
func (c Callers) LoadShare(ctx context.Context) float64 {
	if isLocal(ctx) {
		return 0
	}
	return c.Guard.LoadShare(ctx)
}

// visibilityOf returns a function that reports whether the caller of the call with context ctx may
// know of a model; for the model "", whether it may know of every model.
func (s *Server) visibilityOf(ctx context.Context) func(model string) bool {
	c := Callers{s.config.Guard}
	return func(model string) bool { return c.MayQuery(ctx, model) == nil }
}

// hideNames returns err, with which the caller's call has ended. An error of a model that is not
// there lists those that are; if the caller may not know of one of them, unlisted returns an error
// without the list.
func (s *Server) hideNames(ctx context.Context, err error) error {
	if err == nil || !errors.Is(err, models.ErrNotFound) &&
		outcome.Of(err).Reason != "not_found" {
		return err
	}
	sees := s.visibilityOf(ctx)
	if sees("") || !s.mentionsHidden(err.Error(),
		func(name string) bool { return name != "" && !sees(name) }) {
		return err
	}
	bare := fmt.Errorf("%w: the model that is asked for, or this version of it",
		models.ErrNotFound)
	if errors.Is(err, outcome.ErrRefused) { // of an attempt
		return asRefused(bare)
	}
	return bare
}

// mentionsHidden reports whether a text has the name of a model or family that this agent knows and
// for which hidden returns true.
func (s *Server) mentionsHidden(text string, hidden func(name string) bool) bool {
	named := func(name string) bool { return hidden(name) && strings.Contains(text, name) }
	for _, member := range s.config.Members.View().Members {
		for _, m := range slices.Concat(member.Models, member.Loadable) {
			if named(m.Name) || named(m.Family) {
				return true
			}
		}
	}
	return slices.ContainsFunc(s.config.Worker.Repository().Index(),
		func(status models.Status) bool { return named(status.Model) })
}

// Query counts a query of the caller, with the number of its bytes that are known so far. It
// returns an error if the query exceeds the caller's limits.
func (c Callers) Query(ctx context.Context, w secure.Way, bytes int64) error {
	if isLocal(ctx) {
		return nil
	}
	return c.Guard.Query(ctx, w, bytes)
}

// Bytes counts further bytes of a query that Query has accepted. It can return an error only if
// first is set, which says that these are the first bytes counted.
func (c Callers) Bytes(ctx context.Context, w secure.Way, bytes int64, first bool) error {
	if isLocal(ctx) {
		return nil
	}
	return c.Guard.Bytes(ctx, w, bytes, first)
}

// wayOf says for which of its limits a query counts: as a gateway's attempt, or as a client's
// query.
func wayOf(attempt bool) secure.Way {
	if attempt {
		return secure.Attempted
	}
	return secure.Asked
}

// countQuery counts a query with this header that the caller sends. It returns an error if the
// query exceeds the caller's limits.
func (s *Server) countQuery(ctx context.Context, header metadata.MD) error {
	attempt, part := header[control.AttemptHeader], header[control.PartHeader]
	if len(attempt) > 0 && len(part) > 0 {
		// of one that cannot be parsed the worker says so
		if a, err := control.ParseAttempt(attempt[0], part[0], ""); err == nil {
			if p, ok := secure.PartOf(a); ok {
				return s.config.Guard.QueryPart(ctx, p)
			}
		}
	}
	return s.config.Guard.Query(ctx, wayOf(len(attempt) > 0), 0)
}

// PartRows counts the rows of an attempt, if it is of a part of a query, against the caller's
// limits. largest is the most that a query may have.
func (c Callers) PartRows(ctx context.Context, a control.Attempt, rows, largest int) error {
	p, ok := secure.PartOf(a)
	if !ok || isLocal(ctx) {
		return nil
	}
	return c.Guard.PartRows(ctx, p, rows, largest)
}

// visibleMetrics gathers the agent's metrics, without the series of models that the caller may not
// query. A caller that may query every model, or may read metrics, gets all series.
func (s *Server) visibleMetrics(ctx context.Context) prometheus.Gatherer {
	sees := s.visibilityOf(ctx)
	if sees("") || s.config.Guard.MayControl(ctx, secure.Metrics) {
		return s.config.Registry
	}
	hidden := func(m *dto.Metric) bool {
		model, family := "", ""
		for _, l := range m.GetLabel() {
			switch l.GetName() {
			case "model":
				model = l.GetValue()
			case "family":
				family = l.GetValue()
			}
		}
		name := cmp.Or(model, family)
		return name != "" && !sees(name)
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := s.config.Registry.Gather()
		for _, f := range families {
			f.Metric = slices.DeleteFunc(f.Metric, hidden)
		}
		return slices.DeleteFunc(families,
			func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 }), err
	})
}
