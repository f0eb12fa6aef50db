package main

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/version"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
)

// greeting says to a person at a terminal what an agent serves, where, and what to try next. index
// has what became of each version.
func (s *agentSettings) greeting(at agent.Addresses, index []models.Status) string {
	var serves, fails []string
	for _, m := range index {
		switch {
		case m.State == models.Ready && !slices.Contains(serves, m.Model):
			serves = append(serves, m.Model)
		case m.Failed && m.State != models.Ready:
			first, _, _ := strings.Cut(m.Reason, "\n")
			fails = append(fails, fmt.Sprintf("%s does not serve: %s", m.Model, first))
		}
	}
	scheme, options := "http", ""
	if s.Security.CertFile != "" {
		scheme, options = "https", " --tls-ca CA.crt"
		if s.Security.CAFile != "" {
			options = " --tls-ca " + s.Security.CAFile
		}
	}
	if at.GRPC != agent.DefaultConfig().GRPCAddress {
		options = " --server " + dialable(at.GRPC) + options
	}
	const maxNamed = 8 // models; a line has room for them
	names := strings.Join(serves[:min(len(serves), maxNamed)], ", ")
	if more := len(serves) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	var b strings.Builder
	next := "muster models generate ncf --out " + s.ModelDir
	if len(serves) > 0 {
		next = "muster infer " + serves[0] + options
		fmt.Fprintf(&b, "\nMuster %s serves %s.\n", version.Current(), terminal.Plain(names))
	} else {
		fmt.Fprintf(&b, "\nMuster %s runs and serves no model yet.\n", version.Current())
	}
	for _, f := range fails {
		fmt.Fprintf(&b, "  %s\n", terminal.Plain(f))
	}
	if s.Dashboard {
		fmt.Fprintf(&b, "  dashboard  %s://%s/dashboard/\n", scheme, dialable(at.HTTP))
	}
	fmt.Fprintf(&b, "  REST       %s://%s/v2\n  gRPC       %s\n", scheme, dialable(at.HTTP),
		dialable(at.GRPC))
	fmt.Fprintf(&b, "  try next   %s\n\n", terminal.Plain(next))
	return b.String()
}

// dialable is an address at which this machine reaches a server that listens on bound.
func dialable(bound string) string {
	host, port, err := net.SplitHostPort(bound)
	if err != nil {
		return bound
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
