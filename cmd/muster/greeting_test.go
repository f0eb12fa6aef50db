package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/models"
)

// TestGreeting: a person reads what is served and what is not, and addresses that can be pasted.
func TestGreeting(t *testing.T) {
	var s agentSettings
	s.add(pflag.NewFlagSet("agent", pflag.ContinueOnError))
	at := agent.Addresses{HTTP: "[::]:9000", GRPC: "127.0.0.1:8001"}
	got := s.greeting(at, []models.Status{
		{Model: "bad", Version: 1, State: models.Unavailable, Failed: true, Reason: "no\x1b model"},
		{Model: "ncf", Version: 1, State: models.Ready}, {Model: "ncf", Version: 2,
			State: models.Ready}, {Model: "wnd", Version: 1, State: models.Ready},
	})
	for _, want := range []string{
		" serves ncf, wnd.\n", "  bad does not serve: no\\x1b model\n",
		"  dashboard  http://localhost:9000/dashboard/\n", "  gRPC       127.0.0.1:8001\n",
		"  try next   muster infer ncf\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q in it", got, want)
		}
	}
	s.Security.CertFile, s.Dashboard = "node.crt", false
	at.GRPC = "0.0.0.0:9001"
	got = s.greeting(at, nil)
	for _, want := range []string{
		"serves no model yet", "  REST       https://localhost:9000/v2\n",
		"  try next   muster models generate ncf --out ./model-repository\n",
	} {
		if !strings.Contains(got, want) || strings.Contains(got, "dashboard") {
			t.Errorf("got\n%s\nwant %q in it, and no dashboard", got, want)
		}
	}
	if got := s.greeting(at, []models.Status{{Model: "ncf", State: models.Ready}}); !strings.Contains(
		got, "muster infer ncf --server localhost:9001 --tls-ca CA.crt\n") {
		t.Errorf("got\n%s\nwant the server's address", got)
	}
}
