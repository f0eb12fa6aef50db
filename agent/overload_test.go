package agent_test

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
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
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				var agents []*agenttest.Member
				for range tt.agents {
					agents = append(agents, f.Start(func(a agent.Inside) {
						if tt.agents == 1 { // with more, the leader refuses
							a.Config().MaxWaitingQueries = 100
						}
					}))
				}
				f.Settled(agents...)
				f.Led(agents...)
				send := func(i int, model string, batch int) error {
					req := agenttest.NCFRequest(batch)
					req.ModelName = model
					_, err := agents[i%len(agents)].OIP.ModelInfer(f.Context(), req)
					return err
				}
				if tt.sdk {
					c := f.SDK(agents...)
					defer c.Close()
					send = func(_ int, model string, batch int) error {
						ids, err := tensor.Of("ids", agenttest.NCFIDs(batch), int64(batch), 4)
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

				f.Eventually(time.Second, func() string {
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
func statusDiffers(f *agenttest.Fleet, a *agenttest.Member, want map[string]uint64) string {
	s, err := a.Control.Status(f.Context(), &control.StatusRequest{})
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
		return fmt.Sprintf("status of %s has %v, want %v", a.Host, told, want)
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
func differs(agents []*agenttest.Member, told map[string]uint64, queries float64) string {
	counted := func(name string, labels ...string) (sum float64) {
		for _, a := range agents {
			sum += agenttest.Counted(a.Inside, name, labels...)
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
