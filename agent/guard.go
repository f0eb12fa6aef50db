package agent

import (
	"context"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/muster-serve/muster/api/secure"
)

// openGuard reads what the agent proves itself with, and who may do what.
func (a *Agent) openGuard() error {
	for _, reason := range secure.Reasons() {
		a.metrics.refusals.WithLabelValues(reason)
	}
	guard, err := secure.Open(a.config.Security, secure.Options{
		Logger:    a.log,
		OnRefusal: func(reason string) { a.metrics.refusals.WithLabelValues(reason).Inc() },
		Limits:    a.config.Limits,
	})
	if err != nil {
		return err
	}
	a.guard = guard
	a.network.credentials = guard.PeerCredentials()
	a.metrics.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_certificate_expiry_timestamp_seconds",
		Help: "When the agent's own certificate expires, in seconds since 1970; 0 without one.",
	}, func() float64 {
		if end := guard.CertificateEnd(); !end.IsZero() {
			return float64(end.Unix())
		}
		return 0
	}))
	a.metrics.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_crl_expiry_timestamp_seconds",
		Help: "When the first of the revocation lists should be renewed, in seconds since 1970; 0 without one.",
	}, func() float64 {
		if end := guard.RevocationEnd(); !end.IsZero() {
			return float64(end.Unix())
		}
		return 0
	}))
	if exposed := a.config.exposed(); len(exposed) > 0 {
		a.log.Warn("not encrypted: whoever reaches these can read what passes, change it, query and control", "servers", strings.Join(exposed, ", "))
	}
	return nil
}

// callers are those who make calls, this agent itself among them.
type callers struct{ guard *secure.Guard }

// Client implements clients.
func (c callers) Client(ctx context.Context) string {
	if isLocal(ctx) {
		return ""
	}
	return c.guard.Client(ctx)
}

// MayQuery implements clients.
func (c callers) MayQuery(ctx context.Context, model string) error {
	if isLocal(ctx) {
		return nil
	}
	return c.guard.MayQuery(ctx, model)
}

// sees reports whether whoever made the call that ctx is of may know of a model.
func (a *Agent) sees(ctx context.Context) func(model string) bool {
	c := callers{a.guard}
	return func(model string) bool { return c.MayQuery(ctx, model) == nil }
}

// Query implements clients.
func (c callers) Query(ctx context.Context, w secure.Way, bytes int64) error {
	if isLocal(ctx) {
		return nil
	}
	return c.guard.Query(ctx, w, bytes)
}

// Bytes implements clients.
func (c callers) Bytes(ctx context.Context, w secure.Way, bytes int64, first bool) error {
	if isLocal(ctx) {
		return nil
	}
	return c.guard.Bytes(ctx, w, bytes, first)
}

// wayOf is how the query of a call comes here.
func wayOf(attempt bool) secure.Way {
	if attempt {
		return secure.Attempted
	}
	return secure.Asked
}

// visibleMetrics are those of the agent without the series of models that are not to be seen.
func (a *Agent) visibleMetrics(ctx context.Context) prometheus.Gatherer {
	sees := a.sees(ctx)
	if sees("") || a.guard.MayControl(ctx, secure.Metrics) {
		return a.metrics.registry
	}
	hidden := func(m *dto.Metric) bool {
		return slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == "model" && l.GetValue() != "" && !sees(l.GetValue())
		})
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := a.metrics.registry.Gather()
		for _, f := range families {
			f.Metric = slices.DeleteFunc(f.Metric, hidden)
		}
		return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 }), err
	})
}
