package lead

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
)

// oneClient are Clients that take every caller for one client, which may do everything.
type oneClient string

func (c oneClient) Client(context.Context) string                      { return string(c) }
func (c oneClient) Identity(context.Context) string                    { return string(c) }
func (oneClient) MayQuery(context.Context, string) error               { return nil }
func (oneClient) LoadShare(context.Context) float64                    { return 0 }
func (oneClient) Query(context.Context, secure.Way, int64) error       { return nil }
func (oneClient) Bytes(context.Context, secure.Way, int64, bool) error { return nil }

// TestClientSaysAgent: what a client says of answers that it has compared does not count, also if
// it says that its gateway is an agent's.
func TestClientSaysAgent(t *testing.T) {
	for client, want := range map[oneClient]uint64{"": 50, "ads": 0} {
		synctest.Test(t, func(t *testing.T) {
			released := release.New(release.Config{
				StateDir: t.TempDir(), Apply: func([]*control.Release) {},
				Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
			})
			released.AdoptReleases([]*control.Release{{
				Model: "m", Number: 1, Current: 1, Canary: 2, Share: .25, Tolerance: .05,
			}})
			w := newLeaderWorld(t)
			defer w.stop()
			a := w.add("a", 1, linear, func(c *Config) {
				c.Clients, c.Releases = client, released
			})
			soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			gateway, server := NewPipe[control.GatewayMessage, control.MatchMessage](ctx)
			go func() { server.End(a.leader.Match(server)) }()
			for _, m := range []*control.GatewayMessage{
				{Hello: &control.GatewayHello{
					Gateway: 7, Protocol: control.Spoken.Oldest, Agent: "b",
				}},
				{Compared: []*control.AnswersCompared{{
					Model: "m", Canary: 2, Current: 1, Compared: 50, Wrong: 10,
				}}},
			} {
				if err := gateway.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			resp, err := released.State("m")
			if err != nil {
				t.Fatal(err)
			}
			if got := resp.GetReleases()[0].GetAnswers().GetCompared(); got != want {
				t.Errorf("of client %q %d compared answers count, want %d", client, got, want)
			}
		})
	}
}
