package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Prometheus is a process that scrapes the metrics of agents four times a second.
type Prometheus struct {
	address string
	process *exec.Cmd
	exited  chan struct{}
	log     string
}

// A Sample is one series of an answer: its labels and its value.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// StartPrometheus starts the binary with its files in dir, and waits until it has scraped all
// targets, which are the metrics addresses of agents. native: it takes native histograms. It
// evaluates the rules of a file each second; "": there are none.
func StartPrometheus(ctx context.Context, binary, dir string, native bool,
	targets []string, rules string) (*Prometheus, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"+
		"scrape_configs: [{job_name: muster, static_configs: [{targets: ['%s']}]}]\n",
		strings.Join(targets, "', '"))
	if rules != "" {
		path, err := filepath.Abs(rules)
		if err != nil {
			return nil, err
		}
		text = strings.Replace(text, "global: {", "global: {evaluation_interval: 1s, ", 1) +
			"rule_files: ['" + path + "']\n"
	}
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	ports, err := FreePorts("127.0.0.1", 1)
	if err != nil {
		return nil, err
	}
	p := &Prometheus{
		address: fmt.Sprintf("127.0.0.1:%d", ports[0]), exited: make(chan struct{}),
		log: filepath.Join(dir, "log"),
	}
	args := []string{
		"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		"--web.listen-address=" + p.address, "--log.level=warn",
	}
	if native {
		args = append(args, "--enable-feature=native-histograms")
	}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has a copy
	p.process = exec.Command(binary, args...)
	p.process.Stdout, p.process.Stderr, p.process.SysProcAttr = log, log, ChildAttributes()
	if err := p.process.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.process.Wait() // it is killed
		close(p.exited)
	}()
	return p, p.awaitScraped(ctx, len(targets))
}

// awaitScraped waits until the Prometheus has scraped so many targets.
func (p *Prometheus) awaitScraped(ctx context.Context, targets int) error {
	return p.awaitValue(ctx, "sum(up)", float64(targets))
}

// AwaitScrape waits until the last scrapes of all targets have succeeded and are newer than at.
func (p *Prometheus) AwaitScrape(ctx context.Context, at time.Time) error {
	return p.awaitValue(ctx, fmt.Sprintf("min(up) * (min(timestamp(up)) > bool %.3f)",
		float64(at.UnixMilli())/1000), 1)
}

// awaitValue waits until the answer to a query is one sample of this value.
func (p *Prometheus) awaitValue(ctx context.Context, query string, want float64) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		got, err := p.Query(ctx, query)
		if err == nil && len(got) == 1 && got[0].Value == want {
			return nil
		}
		select {
		case <-poll.C:
		case <-p.exited:
			log, _ := os.ReadFile(p.log)
			return fmt.Errorf("prometheus ended: %s", log)
		case <-ctx.Done():
			return fmt.Errorf("prometheus answers %s with %v, want %v: %w", query, got, want, err)
		}
	}
}

// get asks Prometheus' API. The answer of a status other than 200 has no error.
func (p *Prometheus) get(ctx context.Context, path string) (body []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+p.address+"/api/v1/"+path, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return body, resp.StatusCode, err
}

// A Rule is one of a file of rules, as Prometheus has last evaluated it.
type Rule struct {
	Name, Type string
	Health     string // "ok", "err", or "unknown" until it is evaluated
	LastError  string
}

// Rules returns all rules once each has been evaluated.
func (p *Prometheus) Rules(ctx context.Context) ([]Rule, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		body, _, err := p.get(ctx, "rules")
		if err != nil {
			return nil, err
		}
		var answer struct {
			Data struct{ Groups []struct{ Rules []Rule } }
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return nil, fmt.Errorf("prometheus answers %s: %w", body, err)
		}
		var all []Rule
		for _, g := range answer.Data.Groups {
			all = append(all, g.Rules...)
		}
		if len(all) > 0 &&
			!slices.ContainsFunc(all, func(r Rule) bool { return r.Health == "unknown" }) {
			return all, nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("prometheus has not evaluated its rules: %s", body)
		}
	}
}

// Query returns the answer to a PromQL query, as of now.
func (p *Prometheus) Query(ctx context.Context, query string) ([]Sample, error) {
	body, status, err := p.get(ctx, "query?query="+url.QueryEscape(query))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error string
		Data  struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  []any
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil || status != http.StatusOK ||
		answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("query %q: status %d: %s", query, status, body)
	}
	var samples []Sample
	for _, r := range answer.Data.Result {
		s := Sample{Labels: r.Metric}
		if text, ok := r.Value[len(r.Value)-1].(string); ok {
			s.Value, err = strconv.ParseFloat(text, 64)
		}
		if err != nil {
			return nil, err
		}
		samples = append(samples, s)
	}
	return samples, nil
}

// Stop ends the process, and returns when it has ended.
func (p *Prometheus) Stop() {
	_ = p.process.Process.Kill() // it may have ended
	<-p.exited
}
