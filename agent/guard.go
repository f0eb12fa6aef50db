package agent

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/api/secure"
)

// openGuard reads the agent's certificate and keys, and the files that say which callers may query
// and control. It registers the metrics of refusals and of the times at which certificates and
// revocation lists expire, and warns of servers without encryption. It must run before any listener
// is opened.
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
	a.env.Network.Credentials = guard.PeerCredentials()
	a.env.Network.queryCredentials = guard.PeerQueryCredentials()
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
	if exposed := a.config.exposedServers(); len(exposed) > 0 {
		a.log.Warn(
			"not encrypted: anybody who reaches these servers can read and change traffic, query "+
				"and "+
				"control", "servers", strings.Join(exposed, ", "))
	}
	return nil
}
