package agent

import (
	"context"
	"fmt"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

// TestOverloadCounted: however the fleet looks and its clients ask, the metrics and the status count
// every query that arrives once, and every failure by the model and the reason that its client is
// told.
func TestOverloadCounted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		agents int
		sdk    bool
	}{{"lone agent", 1, false}, {"gateways", 3, false}, {"SDK", 3, true}} {
		t.Run(tt.name, func(t *testing.T) {
			testInFleet(t, func(f *testFleet) {
				var agents []*fleetAgent
				for range tt.agents {
					agents = append(agents, f.start(func(a Inside) {
						if tt.agents == 1 { // with more, the leader refuses
							a.Config().MaxWaitingQueries = 100
						}
					}))
				}
				f.settled(agents...)
				f.led(agents...)
				send := func(i int, model string, batch int) error {
					req := ncfRequest(batch)
					req.ModelName = model
					_, err := agents[i%len(agents)].oip.ModelInfer(f.Context(), req)
					return err
				}
				if tt.sdk {
					c := f.sdk(agents...)
					defer c.Close()
					send = func(_ int, model string, batch int) error {
						ids, err := tensor.Of("ids", ncfIDs(batch), int64(batch), 4)
						if err == nil {
							_, err = c.Infer(f.Context(),
								&oip.Request{Model: model, Inputs: []tensor.Tensor{ids}})
						}
						return err
					}
				}
				var sent sync.WaitGroup
				var mu sync.Mutex
				reasons := map[string]uint64{}
				const queries = 900
				for i := range queries {
					model, batch := "ncf", 100
					switch i {
					case 0:
						batch = 1001 // above the largest
					case 1:
						model = "dlrm" // unknown
					}
					sent.Go(func() {
						err := send(i, model, batch)
						reason := "answered"
						if err != nil {
							reason = oip.Reason(status.Convert(err))
						}
						mu.Lock()
						defer mu.Unlock()
						reasons[reason]++
					})
					if i < 2 { // later they might be refused for the overload
						sent.Wait()
					}
				}
				sent.Wait()
				if reasons["overloaded"] < queries/2 || reasons["answered"] == 0 ||
					reasons["invalid"] != 1 || reasons["not_found"] != 1 {
					f.Fatalf("clients were told %v, want mostly overloaded, some answered", reasons)
				}

				f.eventually(time.Second, func() string {
					if what := differs(agents, reasons, queries); what != "" {
						return what
					}
					for _, a := range agents {
						if what := statusDiffers(f, a, reasons); what != "" {
							return what
						}
					}
					return ""
				})
			})
		})
	}
}

// statusDiffers is in what an agent's status differs from what the clients were told; "" if it does
// not.
func statusDiffers(f *testFleet, a *fleetAgent, want map[string]uint64) string {
	s, err := a.ctl.Status(f.Context(), &control.StatusRequest{})
	if err != nil {
		return err.Error()
	}
	told, ended, rate := map[string]uint64{}, uint64(0), 0.0
	for _, m := range s.GetModels() {
		told["answered"] += m.GetAnswered()
		ended += m.GetAnswered() + m.GetRefused()
		rate += m.GetRate()
		for _, r := range m.GetRefusals() {
			told[r.GetReason()] += r.GetCount()
		}
		switch served := m.GetModel() == "ncf"; {
		case (m.WithinQos != nil) != served:
			return fmt.Sprintf("%q: share within QoS %v, want one: %t", m.GetModel(), m.WithinQos,
				served)
		case served && m.GetWithinQos() > float64(m.GetAnswered())/float64(
			m.GetAnswered()+want["overloaded"]+want["deadline"]):
			return fmt.Sprintf("share within QoS is %v, but only %d were answered",
				m.GetWithinQos(), m.GetAnswered())
		}
	}
	if !maps.Equal(told, want) {
		return fmt.Sprintf("status of %s has %v, want %v", a.host, told, want)
	}
	// All came in the last 10 s. A rate is not over more time than the leader has led.
	if rate < float64(ended)/10 || s.GetRate() < float64(ended)/10 {
		return fmt.Sprintf("of %d queries in the last 10 s the rate is %v/s, by model %v/s", ended,
			s.GetRate(), rate)
	}
	return ""
}

// differs is in what the agents' metrics together differ from what their clients were told; "" if
// they do not.
func differs(agents []*fleetAgent, told map[string]uint64, queries float64) string {
	counted := func(name string, labels ...string) (sum float64) {
		for _, a := range agents {
			sum += a.counted(name, labels...)
		}
		return sum
	}
	if got := counted("muster_arrived_queries_total"); got != queries {
		return fmt.Sprintf("%v queries arrived, want %v", got, queries)
	}
	if got := counted("muster_queries_total", "ncf"); got != float64(told["answered"]) {
		return fmt.Sprintf("%v queries answered, clients have %d answers", got, told["answered"])
	}
	for _, reason := range outcome.Reasons() {
		model := "ncf"
		if reason == "not_found" {
			model = ""
		}
		if got := counted("muster_failed_queries_total", model, reason); got !=
			float64(told[reason]) {
			return fmt.Sprintf("%v queries of %q failed as %s, clients were told %d", got, model,
				reason, told[reason])
		}
	}
	return ""
}

// sdk returns a client of the agents that has found the fleet. The caller closes it.
func (f *testFleet) sdk(agents ...*fleetAgent) *client.Client {
	f.Helper()
	var addresses []string
	for _, a := range agents {
		addresses = append(addresses, a.host+":8001")
	}
	dial := grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		return f.network.dial(ctx, "client", to)
	})
	c, err := client.New(addresses, client.WithDialOptions(dial,
		grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		f.Fatal(err)
	}
	f.eventually(10*time.Second, func() string {
		if g := c.Gateway(); g == nil || g.Leader() == "" {
			return "the SDK has no leader"
		}
		return ""
	})
	return c
}
