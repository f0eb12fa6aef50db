package agent_test

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/agent/agenttest"
)

// TestCosts: what models and nobody pay adds up to the machine's price by its time, and the model that
// ran pays something.
func TestCosts(t *testing.T) {
	config := agenttest.Config(t)
	config.Price = 3600 // a dollar a second
	before := time.Now()
	a := agenttest.Start(t, config, agenttest.Emulated())
	ready := time.Now()
	for range 20 {
		if err := a.InferGRPC(agenttest.NCFRequest(5)); err != nil {
			t.Fatal(err)
		}
	}
	least := time.Since(ready).Seconds()
	families, err := a.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	most, sum := time.Since(before).Seconds(), 0.0
	paid := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "muster_cost_dollars_total" {
			continue
		}
		for _, m := range f.Metric {
			paid[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			sum += m.GetCounter().GetValue()
		}
	}
	if sum < least || sum > most || paid["ncf"] <= 0 || len(paid) != 2 {
		t.Errorf("paid %v, in all %v, want %v to %v, and something for ncf", paid, sum, least, most)
	}
}
