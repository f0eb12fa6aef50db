package serve

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/muster-serve/muster/api/secure"
)

// Callers are those who make calls, by the contexts of their calls: whom the guard knows, and this
// agent itself.
type Callers struct{ Guard *secure.Guard }

// Client is the caller's name; "" if it has none, or is an agent of this fleet.
func (c Callers) Client(ctx context.Context) string {
	if isLocal(ctx) {
		return ""
	}
	return c.Guard.Client(ctx)
}

// MayQuery says why the caller may not query a model; nil if it may.
func (c Callers) MayQuery(ctx context.Context, model string) error {
	if isLocal(ctx) {
		return nil
	}
	return c.Guard.MayQuery(ctx, model)
}

// sees reports whether whoever made the call that ctx is of may know of a model.
func (s *Server) sees(ctx context.Context) func(model string) bool {
	c := Callers{s.config.Guard}
	return func(model string) bool { return c.MayQuery(ctx, model) == nil }
}

// Query counts a query of the caller, of as many bytes as are known yet, or refuses it for the
// caller's limits.
func (c Callers) Query(ctx context.Context, w secure.Way, bytes int64) error {
	if isLocal(ctx) {
		return nil
	}
	return c.Guard.Query(ctx, w, bytes)
}

// Bytes counts bytes of a query that Query has let in. Only the first can be refused.
func (c Callers) Bytes(ctx context.Context, w secure.Way, bytes int64, first bool) error {
	if isLocal(ctx) {
		return nil
	}
	return c.Guard.Bytes(ctx, w, bytes, first)
}

// wayOf is how the query of a call comes here.
func wayOf(attempt bool) secure.Way {
	if attempt {
		return secure.Attempted
	}
	return secure.Asked
}

// visibleMetrics are those of the agent without the series of models that are not to be seen.
func (s *Server) visibleMetrics(ctx context.Context) prometheus.Gatherer {
	sees := s.sees(ctx)
	if sees("") || s.config.Guard.MayControl(ctx, secure.Metrics) {
		return s.config.Registry
	}
	hidden := func(m *dto.Metric) bool {
		return slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == "model" && l.GetValue() != "" && !sees(l.GetValue())
		})
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
