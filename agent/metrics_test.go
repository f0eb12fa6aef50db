package agent_test

import (
	"bytes"
	"io"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/tensor"
)

// metricsOfDemand have series once the demand has changed, see TestDemandChanges, or a second after
// queries were assigned, see TestDashboard, or when a target cannot be met, see TestTargetUnmet.
var metricsOfDemand = []string{
	"muster_demand_changes_total", "muster_proposed_instances",
	"muster_leader_queries_by_type_total", "muster_agent_factor",
	"muster_leader_unmet_share",
}

// TestMetricsAreDocumented holds docs/metrics.md against what the agent serves:
// every metric is there, and every one there exists, of the same type and with
// the same labels. Names and help follow Prometheus's conventions.
func TestMetricsAreDocumented(t *testing.T) {
	nan := new(atomic.Pointer[tensor.Tensor])
	nan.Store(agenttest.FP32(float32(math.NaN())))
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Strange{
		Executor: agenttest.Emulated(), Answer: nan,
	})
	if err := a.InferGRPC(agenttest.NCFRequest(1)); err != nil {
		t.Fatal(err)
	}
	resp, err := a.HTTP.Get("http://" + a.Addresses().Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	scraped, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.New(bytes.NewReader(scraped)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(scraped))
	if err != nil {
		t.Fatal(err)
	}

	document, documented := agenttest.DocumentedMetrics(t)
	for name, family := range families {
		if !strings.HasPrefix(name, "muster_") {
			continue
		}
		if served := agenttest.TypeAndLabels(family); documented[name] != served {
			t.Errorf("%s is a %q, docs/metrics.md has %q", name, served, documented[name])
		}
	}
	for name := range documented {
		if families[name] == nil && !slices.Contains(metricsOfDemand, name) &&
			!slices.Contains(agenttest.MetricsOfFamilies, name) && !strings.HasPrefix(name, "muster_fleet_") &&
			!strings.HasPrefix(name, "muster_gpu_") && // see TestGPU
			!strings.HasPrefix(name, "muster_release_") {
			t.Errorf("docs/metrics.md has %s, which the agent does not serve", name)
		}
	}
	for _, reason := range outcome.Reasons() {
		if !strings.Contains(document, "`"+reason+"`") {
			t.Errorf("docs/metrics.md does not explain the failure reason %q", reason)
		}
	}
}

// TestFleetMetrics: an agent counts what its gateway does with a leader and
// without one, and whom gossip knows.
func TestFleetMetrics(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a, b, c := f.Start(), f.Start(agenttest.NeverLeads), f.Start(agenttest.NeverLeads)
		f.Settled(a, b, c)
		f.Led(a, b, c)
		values := func() map[string]float64 {
			families, err := b.Registry().Gather()
			if err != nil {
				f.Fatal(err)
			}
			got := map[string]float64{}
			for _, family := range families {
				for _, m := range family.GetMetric() {
					name := family.GetName()
					for _, l := range m.GetLabel() {
						name += " " + l.GetValue()
					}
					got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
			return got
		}
		if failed := f.Send(20, time.Millisecond, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		led := values()
		for name, want := range map[string]float64{
			"muster_gateway_submits_total": 20, "muster_gateway_attempts_total leader": 20,
			"muster_gateway_attempts_total gateway": 0,
			"muster_gateway_leader_links_total":     1, "muster_gateway_probes_total": 0,
			"muster_gossip_members": 3,
		} {
			if got, ok := led[name]; !ok || got != want {
				f.Errorf("with a leader, %s: got %v, want %v", name, got, want)
			}
		}

		f.Partition([]*agenttest.Member{a, c})
		if failed := f.Send(20, 20*time.Millisecond, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		f.Settled(b)
		cut := values()
		for _, name := range []string{
			"muster_gateway_attempts_total gateway", "muster_gateway_probes_total",
			"muster_gateway_unanswered_probes_total",
			"muster_gateway_leader_silences_total",
		} {
			if cut[name] <= led[name] {
				f.Errorf("after the others were cut off, %s: got %v, want more than %v", name,
					cut[name], led[name])
			}
		}
		if got := cut["muster_gossip_members"]; got != 1 {
			f.Errorf("after the others were cut off, muster_gossip_members: got %v, want 1", got)
		}
		for _, name := range []string{
			"muster_gossip_sent_packets_total", "muster_gossip_received_packet_bytes_total",
			"muster_gossip_new_loads_total",
		} {
			if cut[name] == 0 {
				f.Errorf("%s: got 0", name)
			}
		}
	})
}
