package harness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A Usage is how much of the machine an agent uses, as its metrics say.
type Usage struct {
	Goroutines, Descriptors int
	Memory, GoMemory        int // resident memory, and the Go runtime's part of it, in MiB
	Series                  int // how many time series its metrics have
}

// Most has, of each field, the larger value of both.
func (u Usage) Most(o Usage) Usage {
	return Usage{
		max(u.Goroutines, o.Goroutines), max(u.Descriptors, o.Descriptors),
		max(u.Memory, o.Memory), max(u.GoMemory, o.GoMemory), max(u.Series, o.Series),
	}
}

// Usages reads the usage of each agent from its metrics.
func (f *Fleet) Usages(ctx context.Context) (all []Usage, err error) {
	scheme, transport := "http://", &http.Transport{DisableKeepAlives: true}
	if f.Certificates != nil {
		scheme = "https://"
		if transport.TLSClientConfig, err = f.Certificates.TLS(Admin); err != nil {
			return nil, err
		}
	}
	c := &http.Client{Transport: transport, Timeout: Patience}
	for _, n := range f.Nodes {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+n.Metrics+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		answer, err := c.Do(r)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			return nil, err
		}
		u, err := parseUsage(text)
		if err != nil {
			return nil, fmt.Errorf("metrics of %v: %w", n, err)
		}
		all = append(all, u)
	}
	return all, nil
}

func parseUsage(metrics []byte) (u Usage, err error) {
	values := map[string]float64{}
	for line := range bytes.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if name == "#" {
			continue
		}
		u.Series++
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			if values[name], err = strconv.ParseFloat(value, 64); err != nil {
				return u, err
			}
		}
	}
	if values["go_goroutines"] == 0 || values["process_open_fds"] == 0 {
		return u, fmt.Errorf("want go_goroutines and process_open_fds, not found in %d series",
			u.Series)
	}
	u.Goroutines, u.Descriptors = int(values["go_goroutines"]), int(values["process_open_fds"])
	u.Memory = int(values["process_resident_memory_bytes"]) >> 20
	u.GoMemory = int(values["go_memstats_sys_bytes"]-
		values["go_memstats_heap_released_bytes"]) >> 20
	return u, nil
}

// What ReadLogs looks for in the agents' logs.
var (
	trouble = regexp.MustCompile(`level=(WARN|ERROR) msg=("(?:[^"\\]|\\.)*"|\S+)`)
	leading = regexp.MustCompile(`msg="[^ "]+ leads the fleet in epoch \d+" .*epoch=(\d+)`)
	named   = regexp.MustCompile(`\S+-[0-9a-f]{8}\b`) // the name of an agent
	crashed = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*|WARNING: DATA RACE)`)
)

// A Logbook is a summary of the agents' logs.
type Logbook struct {
	Elections int            // how many epochs had a leader
	Warnings  map[string]int // how many of each message
	Errors    []string       // errors, panics and data races, each with its log file
}

// ReadLogs reads the logs of all agents that the fleet ever had.
func (f *Fleet) ReadLogs() (b Logbook, err error) {
	b.Warnings = map[string]int{}
	epochs := map[string]bool{}
	for i := range f.count {
		name := fmt.Sprintf("agent-%d.log", i)
		text, err := os.ReadFile(filepath.Join(f.Dir, name))
		if err != nil {
			return b, err
		}
		for _, m := range trouble.FindAllSubmatch(text, -1) {
			what := named.ReplaceAllString(strings.Trim(string(m[2]), `"`), "...")
			b.Warnings[what]++
			if string(m[1]) == "ERROR" {
				b.Errors = append(b.Errors, name+": "+what)
			}
		}
		for _, m := range crashed.FindAll(text, -1) {
			b.Errors = append(b.Errors, fmt.Sprintf("%s: %s", name, m))
		}
		for _, m := range leading.FindAllSubmatch(text, -1) {
			epochs[string(m[1])] = true
		}
	}
	b.Elections = len(epochs)
	return b, nil
}
