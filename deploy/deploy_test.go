// Package deploy tests what is put beside a fleet: Grafana's board and Prometheus's rules.
package deploy

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var metric = regexp.MustCompile(`\bmuster_[a-z_]+`)

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestMetricsAreDocumented: board and rules ask only for metrics of docs/metrics.md, which a test
// of the agent holds against what agents serve.
func TestMetricsAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, name := range metric.FindAllString(read(t, "../docs/metrics.md"), -1) {
		documented[name] = true
	}
	recorded := regexp.MustCompile(`[a-z]+:muster_[a-z0-9_:]+`)
	for _, file := range []string{
		"grafana/muster.json", "prometheus/muster.rules.yml", "prometheus/muster.test.yml",
	} {
		content := recorded.ReplaceAllString(read(t, file), "")
		names := metric.FindAllString(content, -1)
		if len(names) == 0 {
			t.Errorf("%s has no metric", file)
		}
		for _, name := range names {
			short := name
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				short = strings.TrimSuffix(short, end)
			}
			if !documented[name] && !documented[short] {
				t.Errorf("%s asks for %s, which docs/metrics.md does not have", file, name)
			}
		}
	}
}

// TestAlertsAreTested: muster.test.yml has of every alert a case where it fires and one where it is
// silent, and docs/metrics.md names it.
func TestAlertsAreTested(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Expr        string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	var tests struct {
		Tests []struct {
			Alerts []struct {
				Name   string `yaml:"alertname"`
				Expect []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	for name, into := range map[string]any{
		"prometheus/muster.rules.yml": &rules, "prometheus/muster.test.yml": &tests,
	} {
		if err := yaml.Unmarshal([]byte(read(t, name)), into); err != nil {
			t.Fatal(err)
		}
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, group := range tests.Tests {
		for _, a := range group.Alerts {
			if len(a.Expect) > 0 {
				fires[a.Name] = true
			} else {
				silent[a.Name] = true
			}
		}
	}
	document := read(t, "../docs/metrics.md")
	alerts := 0
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			if r.Alert == "" {
				continue
			}
			alerts++
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("%s: fires in a test: %t, is silent in one: %t; want both", r.Alert,
					fires[r.Alert], silent[r.Alert])
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s has the severity %q, want page or ticket", r.Alert, s)
			}
			if r.Annotations["summary"] == "" {
				t.Errorf("%s has no summary", r.Alert)
			}
			if !strings.Contains(document, "`"+r.Alert+"`") {
				t.Errorf("docs/metrics.md does not have %s", r.Alert)
			}
		}
	}
	if alerts < 15 {
		t.Errorf("there are %d alerts", alerts)
	}
}

// TestBoard: every panel asks the chosen data source, of the chosen jobs, over Grafana's own
// interval, and no two lie on each other.
func TestBoard(t *testing.T) {
	var board struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct {
				Expr         string
				LegendFormat string
				Datasource   struct{ UID string }
			}
		}
		Templating struct {
			List []struct{ Name, AllValue string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana/muster.json")), &board); err != nil {
		t.Fatal(err)
	}
	// "All" is else the models that answer. What fails for a family is under its name, which does not.
	for _, v := range board.Templating.List {
		if v.Name == "model" && v.AllValue != ".*" {
			t.Errorf("all models are %q, want .*", v.AllValue)
		}
	}
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("%s has the id %d of another", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok || x >= 24 {
					t.Fatalf("%s lies on %s, or beyond the edge, at %d, %d", p.Title, other, x, y)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s asks nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, selector := range regexp.MustCompile(`muster_[a-z_]+(\{[^}]*\})?`).FindAllString(
				target.Expr, -1) {
				if !strings.Contains(selector, `job=~"$job"`) {
					t.Errorf("%s: %s is not of the chosen jobs", p.Title, selector)
				}
			}
			if regexp.MustCompile(`\[[0-9]+[smh]\]`).MatchString(target.Expr) &&
				!strings.Contains(p.Title, "5 min") {
				t.Errorf("%s has an interval of its own: %s", p.Title, target.Expr)
			}
			if strings.Contains(target.Expr, "muster_arrived") && target.LegendFormat == "answered" {
				t.Errorf("%s calls what arrives answered", p.Title)
			}
			if target.Datasource.UID != "${datasource}" && target.Datasource.UID != "" {
				t.Errorf("%s asks the data source %q", p.Title, target.Datasource.UID)
			}
		}
	}
}

// TestPackagesSuggestLocale: models with a StringNormalizer need a locale that few machines have.
func TestPackagesSuggestLocale(t *testing.T) {
	var packages struct {
		Suggests  []string
		Overrides map[string]struct{ Suggests []string }
	}
	if err := yaml.Unmarshal([]byte(read(t, "nfpm.yaml")), &packages); err != nil {
		t.Fatal(err)
	}
	if got := packages.Suggests; len(got) != 1 || got[0] != "locales" {
		t.Errorf("the deb suggests %q, want locales", got)
	}
	if got := packages.Overrides["rpm"].Suggests; len(got) != 1 || got[0] != "glibc-langpack-en" {
		t.Errorf("the rpm suggests %q, want glibc-langpack-en", got)
	}
}
