package agenttest

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// Variants makes the agent emulate copies of NCF, by their names. Their executions take so long.
// Each has the lines of settings in its model.yaml.
func (f *Fleet) Variants(latency time.Duration, settings map[string]string) func(agent.Inside) {
	f.Helper()
	dir := f.TempDir()
	for name, more := range settings {
		to := filepath.Join(dir, name)
		if err := os.CopyFS(to, os.DirFS(filepath.Join(f.Dir, "ncf"))); err != nil {
			f.Fatal(err)
		}
		config := filepath.Join(to, "model.yaml")
		text, err := os.ReadFile(config)
		if err != nil {
			f.Fatal(err)
		}
		changed := string(text)
		for line := range strings.Lines(more) {
			key, _, _ := strings.Cut(line, ":")
			changed = regexp.MustCompile(`(?m)^`+key+`:.*\n`).ReplaceAllString(changed, "")
		}
		changed += more
		if !strings.HasSuffix(changed, "\n") {
			changed += "\n"
		}
		if err := os.WriteFile(config, []byte(changed), 0o644); err != nil {
			f.Fatal(err)
		}
	}
	return func(a agent.Inside) {
		a.Config().ModelDir = dir
		a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
			return runtime.NewEmulated(
				func(*models.Version, int) time.Duration { return latency }), nil
		}
	}
}

// rank are a family's two variants, on an agent each.
var (
	Exact  = map[string]string{"ncf": "family: rank\naccuracy: 1\nscore: .9\nmetric: top10\n"}
	Coarse = map[string]string{"ncf-int8": "family: rank\naccuracy: .95\n"}
)

// NewRequest returns a query for a name.
func NewRequest(name string, least float64) *inference.ModelInferRequest {
	req := NCFRequest(10)
	req.ModelName = name
	if least != 0 {
		req.Parameters = map[string]*inference.InferParameter{"least_accuracy": {
			ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: least},
		}}
	}
	return req
}

// Family waits until each of the agents knows the family with these variants.
func (f *Fleet) Family(name, want string, agents ...*Member) {
	f.Helper()
	f.Eventually(20*time.Second, func() string {
		for _, a := range agents {
			got := ""
			if family := a.Gateway().Family(name); family != nil {
				got = strings.Join(family.Names(), " ")
			}
			if got != want {
				return fmt.Sprintf("%s knows %s with %q, want %q", a.Host, name, got, want)
			}
		}
		return ""
	})
}

// MetricsOfFamilies are those that an agent has only once a family is served.
var MetricsOfFamilies = []string{"muster_answers_accuracy", "muster_family_accuracy"}
