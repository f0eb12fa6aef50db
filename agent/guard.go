package agent

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

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
		Help: "When the first of the revocation lists should be renewed, in seconds since 1970; " +
			"0 without one.",
	}, func() float64 {
		if end := guard.RevocationEnd(); !end.IsZero() {
			return float64(end.Unix())
		}
		return 0
	}))
	if exposed := a.config.exposed(); len(exposed) > 0 {
		a.log.Warn(
			"not encrypted: whoever reaches these can read what passes, change it, query and "+
				"control", "servers", strings.Join(exposed, ", "))
	}
	return nil
}
