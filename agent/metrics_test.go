package agent

import (
	"bufio"
	"bytes"
	"io"
	"iter"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

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

// documentedMetrics is docs/metrics.md, and the type and the labels that it says of each metric.
func documentedMetrics(t testing.TB) (document string, documented map[string]string) {
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented = map[string]string{}
	row := regexp.MustCompile("^\\| `(muster_[a-z_]+)` \\| ([a-z]+) \\| ?([a-z_, ]*?) ?\\|")
	for line := range strings.Lines(string(text)) {
		if m := row.FindStringSubmatch(line); m != nil {
			labels := strings.Split(m[3], ", ")
			slices.Sort(labels)
			documented[m[1]] = m[2] + " of " + strings.Join(labels, ", ")
		}
	}
	return string(text), documented
}

// TestMetricsAreDocumented holds docs/metrics.md against what the agent serves:
// every metric is there, and every one there exists, of the same type and with
// the same labels. Names and help follow Prometheus's conventions.
func TestMetricsAreDocumented(t *testing.T) {
	nan := new(atomic.Pointer[tensor.Tensor])
	nan.Store(fp32(float32(math.NaN())))
	a := startAgent(t, testConfig(t), strange{emulated(), nan})
	if err := a.inferGRPC(ncfRequest(1)); err != nil {
		t.Fatal(err)
	}
	resp, err := a.http.Get("http://" + a.Addresses().Metrics + "/metrics")
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

	document, documented := documentedMetrics(t)
	for name, family := range families {
		if !strings.HasPrefix(name, "muster_") {
			continue
		}
		if served := typeAndLabels(family); documented[name] != served {
			t.Errorf("%s is a %q, docs/metrics.md has %q", name, served, documented[name])
		}
	}
	for name := range documented {
		if families[name] == nil && !slices.Contains(metricsOfDemand, name) &&
			!slices.Contains(metricsOfFamilies, name) && !strings.HasPrefix(name, "muster_fleet_") &&
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

// counted is what the agent counts under a name, summed over its labels, or over
// those with a value.
func (a Inside) counted(name string, values ...string) (sum float64) {
	families, err := a.Registry().Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := []string{}
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if !slices.ContainsFunc(values,
				func(v string) bool { return !slices.Contains(labels, v) }) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// held is how many of what the agent keeps, as the Sizes of its rooms name it.
func (a Inside) held(what string) (held int) {
	tell := func(name string, n int) {
		if name == what {
			held = n
		}
	}
	a.Worker().Sizes(tell)
	a.Server().Sizes(tell)
	return held
}

// servesAsDocumented: of the metrics whose names have the prefix the agent serves those of
// docs/metrics.md, with the types and labels there, and no others.
func servesAsDocumented(t testing.TB, a Inside, prefix string) {
	t.Helper()
	families, err := a.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	_, documented := documentedMetrics(t)
	served := map[string]bool{}
	for _, family := range families {
		name := family.GetName()
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		served[name] = true
		if is := typeAndLabels(family); documented[name] != is {
			t.Errorf("%s is a %q, docs/metrics.md has %q", name, is, documented[name])
		}
	}
	for name := range documented {
		if strings.HasPrefix(name, prefix) && !served[name] {
			t.Errorf("docs/metrics.md has %s, which the agent does not serve", name)
		}
	}
}

// typeAndLabels is "counter of model, version": the labels are sorted.
func typeAndLabels(family *dto.MetricFamily) string {
	var labels []string
	for _, m := range family.GetMetric() {
		for _, l := range m.GetLabel() {
			if !slices.Contains(labels, l.GetName()) {
				labels = append(labels, l.GetName())
			}
		}
	}
	slices.Sort(labels)
	return strings.ToLower(family.GetType().String()) + " of " + strings.Join(labels, ", ")
}

// TestFleetMetrics: an agent counts what its gateway does with a leader and
// without one, and whom gossip knows.
func TestFleetMetrics(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		a, b, c := f.start(), f.start(neverLeads), f.start(neverLeads)
		f.settled(a, b, c)
		f.led(a, b, c)
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
		if failed := f.send(20, time.Millisecond, b); len(failed) > 0 {
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

		f.partition([]*fleetAgent{a, c})
		if failed := f.send(20, 20*time.Millisecond, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		f.settled(b)
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

func linesOf(t testing.TB, r io.Reader) iter.Seq[string] {
	return func(yield func(string) bool) {
		scanner := bufio.NewScanner(r)
		for scanner.Scan() {
			if !yield(scanner.Text()) {
				return
			}
		}
		if err := scanner.Err(); err != nil {
			t.Error(err)
		}
	}
}
