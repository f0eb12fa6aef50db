package agent

import (
	"bufio"
	"io"
	"iter"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestMetricsAreDocumented holds docs/metrics.md against what the agent serves:
// every metric is there, and every one there exists, of the same type and with
// the same labels.
func TestMetricsAreDocumented(t *testing.T) {
	a := startAgent(t, testConfig(t), emulated())
	if err := a.inferGRPC(ncfRequest(1)); err != nil {
		t.Fatal(err)
	}
	resp, err := a.http.Get("http://" + a.addresses.Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	served := map[string]string{} // type by name
	for line := range linesOf(t, resp.Body) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[1] == "TYPE" && strings.HasPrefix(fields[2], "muster_") {
			served[fields[2]] = fields[3]
		}
	}

	document, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	row := regexp.MustCompile("^\\| `(muster_[a-z_]+)` \\| ([a-z]+) \\|")
	for line := range strings.Lines(string(document)) {
		if m := row.FindStringSubmatch(line); m != nil {
			documented[m[1]] = m[2]
		}
	}
	for name, kind := range served {
		if documented[name] != kind {
			t.Errorf("%s is a %s, docs/metrics.md has %q", name, kind, documented[name])
		}
	}
	for name := range documented {
		if served[name] == "" {
			t.Errorf("docs/metrics.md has %s, which the agent does not serve", name)
		}
	}
	for _, reason := range failureReasons {
		if !strings.Contains(string(document), "`"+reason+"`") {
			t.Errorf("docs/metrics.md does not explain the failure reason %q", reason)
		}
	}
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
