package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// TestQueryAllocations: a query allocates no more than it did when the bounds below were measured
// and 1 % more, client included, whichever way it takes. Executors take no time, so that in
// virtual time nothing else happens meanwhile; of several rounds the least counts.
func TestQueryAllocations(t *testing.T) {
	if agenttest.RaceDetector {
		t.Skip("the race detector allocates, too")
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		timeless := func(a agent.Inside) {
			a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
				return agenttest.Emulated(), nil
			}
		}
		worker := f.Start(timeless)
		f.Settled(worker)
		f.Led(worker)
		v, err := models.ReadVersion(f.Dir, "ncf", 1)
		if err != nil {
			f.Fatal(err)
		}
		inputs := agenttest.RandomInputs(f, v, 8)
		ctx, cancel := context.WithTimeout(f.Context(), time.Hour)
		defer cancel()
		// measure is of queries to an agent, from when the client is ready.
		measure := func(way string, to *agenttest.Member, most float64, ready func(*client.Client) bool,
			options ...client.Option) {
			dial := grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				return f.Network.Dial(ctx, "client", to)
			})
			c, err := client.New([]string{to.Host + ":8001"}, append(options,
				client.WithDialOptions(dial,
					grpc.WithTransportCredentials(insecure.NewCredentials())))...)
			if err != nil {
				f.Fatal(err)
			}
			defer c.Close()
			infer := func() error {
				resp, err := c.Infer(ctx, &oip.Request{Model: "ncf", Inputs: inputs})
				if err == nil {
					resp.Release()
				}
				return err
			}
			f.Eventually(10*time.Second, func() string {
				if err := infer(); err != nil || !ready(c) {
					return fmt.Sprintf("%s: not ready, %v", way, err)
				}
				return ""
			})
			send := func(n int) {
				for range n {
					if err := infer(); err != nil {
						f.Fatal(err)
					}
				}
			}
			send(200)
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // pools keep what they have
			const rounds, queries = 5, 200
			least := math.Inf(1)
			for range rounds {
				least = min(least, testing.AllocsPerRun(1, func() { send(queries) })/queries)
			}
			if f.Logf("%s: %.1f allocations a query", way, least); least > most {
				f.Errorf("%s: %.1f allocations a query, want at most %.1f", way, least, most)
			}
		}

		at := func(*client.Client) bool { return true }
		// Two are of the parameter that says of these answers that they are emulated.
		measure("a client of the protocol, one agent", worker, 194.5, at, client.WithoutFleet())
		// has none
		gateway := f.Start(timeless, agenttest.NeverLeads, func(a agent.Inside) { a.Config().ModelDir = f.TempDir() })
		f.Led(worker, gateway)
		led := func(*client.Client) bool { return gateway.Gateway().Leader() == worker.AgentName() }
		// One more since a gateway looks at the trailer where a worker says what took long.
		measure("a client of the protocol, gateway and worker", gateway, 321, led,
			client.WithoutFleet())
		led = func(c *client.Client) bool {
			return c.Gateway() != nil && c.Gateway().Leader() == worker.AgentName()
		}
		measure("the SDK, leader and worker", worker, 152, led)
	})
}
