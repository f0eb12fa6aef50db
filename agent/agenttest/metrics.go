package agenttest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/muster-serve/muster/agent"
)

// DocumentedMetrics is docs/metrics.md, and the type and the labels that it says of each metric.
func DocumentedMetrics(t testing.TB) (document string, documented map[string]string) {
	t.Helper()
	root := ".." // a test runs in its package's folder
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		root = "../.."
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
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

// Counted is what the agent counts under a name, summed over its labels, or over
// those with a value.
func Counted(a agent.Inside, name string, values ...string) (sum float64) {
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

// Held is how many of what the agent keeps, as the Sizes of its rooms name it.
func Held(a agent.Inside, what string) (held int) {
	tell := func(name string, n int) {
		if name == what {
			held = n
		}
	}
	a.Worker().Sizes(tell)
	a.Server().Sizes(tell)
	return held
}

// ServesAsDocumented checks that of the metrics whose names have the prefix the agent serves those
// of docs/metrics.md, with the types and labels there, and no others.
func ServesAsDocumented(t testing.TB, a agent.Inside, prefix string) {
	t.Helper()
	families, err := a.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	_, documented := DocumentedMetrics(t)
	served := map[string]bool{}
	for _, family := range families {
		name := family.GetName()
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		served[name] = true
		if is := TypeAndLabels(family); documented[name] != is {
			t.Errorf("%s is a %q, docs/metrics.md has %q", name, is, documented[name])
		}
	}
	for name := range documented {
		if strings.HasPrefix(name, prefix) && !served[name] {
			t.Errorf("docs/metrics.md has %s, which the agent does not serve", name)
		}
	}
}

// TypeAndLabels is "counter of model, version": the labels are sorted.
func TypeAndLabels(family *dto.MetricFamily) string {
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
