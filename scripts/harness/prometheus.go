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
// targets, which are the metrics addresses of agents. native: it takes native histograms.
func StartPrometheus(ctx context.Context, binary, dir string, native bool,
	targets []string) (*Prometheus, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"+
		"scrape_configs: [{job_name: muster, static_configs: [{targets: ['%s']}]}]\n",
		strings.Join(targets, "', '"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	ports, err := freePorts("127.0.0.1", 1)
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
	return p, p.scraped(ctx, len(targets))
}

// scraped waits until the Prometheus has scraped so many targets.
func (p *Prometheus) scraped(ctx context.Context, targets int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		up, err := p.Query(ctx, "sum(up)")
		if err == nil && len(up) == 1 && up[0].Value == float64(targets) {
			return nil
		}
		select {
		case <-poll.C:
		case <-p.exited:
			log, _ := os.ReadFile(p.log)
			return fmt.Errorf("prometheus ended: %s", log)
		case <-ctx.Done():
			return fmt.Errorf("prometheus has scraped %v, want %d agents: %w", up, targets, err)
		}
	}
}

// Query returns the answer to a PromQL query, as of now.
func (p *Prometheus) Query(ctx context.Context, query string) ([]Sample, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+p.address+"/api/v1/query?query="+url.QueryEscape(query), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
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
	if err := json.Unmarshal(body, &answer); err != nil || resp.StatusCode != http.StatusOK ||
		answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("query %q: %s: %s", query, resp.Status, body)
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
