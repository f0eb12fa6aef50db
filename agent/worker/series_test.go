package worker_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/muster-serve/muster/agent/agenttest"
)

// TestSeries: thirteen models cost an agent as many series as docs/metrics.md says, for scrapers
// that take native histograms and for others.
func TestSeries(t *testing.T) {
	const models = 13
	config := agenttest.Config(t)
	files := filepath.Join(config.ModelDir, "ncf")
	config.ModelDir = t.TempDir()
	for i := range models {
		if err := os.CopyFS(filepath.Join(config.ModelDir, fmt.Sprintf("m%d", i)),
			os.DirFS(files)); err != nil {
			t.Fatal(err)
		}
	}
	a := agenttest.Start(t, config, agenttest.Emulated())
	for i := range models {
		req := agenttest.NCFRequest(1)
		req.ModelName = fmt.Sprintf("m%d", i)
		if err := a.InferGRPC(req); err != nil {
			t.Fatal(err)
		}
	}
	document, _ := agenttest.DocumentedMetrics(t)
	said := regexp.MustCompile(
		`An agent costs (\d+) series and\s+(\d+) for each version that it holds; with native ` +
			`histograms\s+(\d+)\s+and\s+(\d+)\.`).FindStringSubmatch(document)
	if said == nil {
		t.Fatal("docs/metrics.md does not say how many series an agent costs")
	}
	for i, accept := range []string{"text/plain", string(expfmt.NewFormat(expfmt.TypeProtoDelim))} {
		all, ofModels := series(a, accept)
		wantAgent, _ := strconv.Atoi(said[1+2*i])
		wantVersion, _ := strconv.Atoi(said[2+2*i])
		if ofModels != models*wantVersion {
			t.Errorf("%s: %d models cost %d series, docs/metrics.md says %d each", accept, models,
				ofModels, wantVersion)
		}
		// Go's own metrics differ a little between its versions and operating systems.
		if own := all - ofModels; math.Abs(float64(own-wantAgent)) > 5 {
			t.Errorf("%s: an agent costs %d series, docs/metrics.md says %d", accept, own, wantAgent)
		}
		if i == 0 && all > 800 { // of the 2,406 that they once were
			t.Errorf("%d models cost %d series in all, want a third of 2,406", models, all)
		}
	}
}

// missed has a series for each cause that queries were late for, as they are on a busy machine.
const missed = "muster_missed_queries_total"

// series returns how many series a scraper gets that accepts a format, and how many of them have the
// label model. One that accepts protobuf takes native histograms, each of which is one series.
func series(a *agenttest.Agent, accept string) (all, ofModels int) {
	a.T.Helper()
	req, err := http.NewRequestWithContext(a.T.Context(), "GET",
		"http://"+a.Addresses().Metrics+"/metrics", http.NoBody)
	if err != nil {
		a.T.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := a.HTTP.Do(req)
	if err != nil {
		a.T.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		a.T.Fatal(err)
	}
	format := expfmt.ResponseFormat(resp.Header)
	if format.FormatType() == expfmt.TypeTextPlain {
		for line := range bytes.Lines(body) {
			if !bytes.HasPrefix(line, []byte("#")) && !bytes.HasPrefix(line, []byte(missed)) {
				all++
				if bytes.Contains(line, []byte(`model="m`)) {
					ofModels++
				}
			}
		}
		return all, ofModels
	}
	decoder := expfmt.NewDecoder(bytes.NewReader(body), format)
	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); err == io.EOF {
			return all, ofModels
		} else if err != nil {
			a.T.Fatal(err)
		}
		for _, m := range family.GetMetric() {
			if family.GetName() == missed {
				continue
			}
			n := 1
			if h := m.GetHistogram(); h != nil && h.Schema == nil {
				n = len(h.GetBucket()) + 3
			} else if m.GetSummary() != nil {
				n = len(m.GetSummary().GetQuantile()) + 2
			}
			all += n
			if slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
				return l.GetName() == "model" && strings.HasPrefix(l.GetValue(), "m")
			}) {
				ofModels += n
			}
		}
	}
}
