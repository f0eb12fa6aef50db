// Command growth measures what versions that come and go leave in an agent: it starts one on a
// model of the zoo, has version after version take the place of the one before, each serving some
// queries, waits until what is gone should be forgotten, and prints the memory and the metrics in
// between.
//
//	make build
//	go run ./scripts/growth
//	go run ./scripts/growth -muster /path/to/another -wait 0
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/scripts/process"
	"github.com/muster-serve/muster/sim/workload"
)

func main() {
	var m measurement
	flag.StringVar(&m.muster, "muster", "bin/muster", "the binary")
	flag.StringVar(&m.lib, "onnxruntime-lib", "", "ONNX Runtime library, of a binary without one")
	flag.StringVar(&m.model, "model", "ncf", "model of the zoo")
	flag.IntVar(&m.versions, "versions", 60, "how many come")
	flag.Float64Var(&m.rate, "rate", 300, "queries/s, for a second to each version")
	flag.DurationVar(&m.wait, "wait", 12*time.Minute, "how long to wait in the end, for what is gone to be forgotten")
	flag.Float64Var(&m.limit, "limit", 1.25, "fail if resident memory, from the fifth version on, or the series of metrics have grown by more")
	flag.Parse()
	runtime.LockOSThread() // see process.Agent
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := m.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "growth: %v\n", err)
		os.Exit(1)
	}
}

type measurement struct {
	muster, lib, model string
	versions           int
	rate, limit        float64
	wait               time.Duration

	dir    string // of the models
	agent  *process.Agent
	client *client.Client
	last   int // version
}

func (m *measurement) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "muster-growth")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m.dir, m.last = filepath.Join(dir, "models"), 1
	if _, err := zoo.Generate(ctx, m.dir, m.model, zoo.Options{Scale: zoo.Small}); err != nil {
		return err
	}
	args := []string{"--model-dir", m.dir, "--state-dir", filepath.Join(dir, "state"), "--insecure"}
	if m.lib != "" {
		args = append(args, "--onnxruntime-lib", m.lib)
	}
	if m.agent, err = process.Start(process.Config{Muster: m.muster, Log: filepath.Join(dir, "log"), Args: args}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.agent.Stop()) }()
	if m.client, err = client.New([]string{m.agent.GRPC}); err != nil {
		return err
	}
	defer m.client.Close()
	if err := process.WaitReady(ctx, m.client, []string{m.model}); err != nil {
		return err
	}
	if err := m.query(ctx, time.Second); err != nil {
		return err
	}
	begin, err := m.look("in the beginning")
	if err != nil {
		return err
	}
	for range 5 { // the memory that any agent needs once
		if err := m.next(ctx); err != nil {
			return err
		}
	}
	few, err := m.look("after 5 versions")
	if err != nil {
		return err
	}
	for i := range m.versions {
		if err := m.next(ctx); err != nil {
			return err
		}
		if (i+1)%10 == 0 {
			if _, err := m.look(fmt.Sprintf("after %d more", i+1)); err != nil {
				return err
			}
		}
	}
	end, err := m.rest(ctx)
	if err != nil {
		return err
	}
	if memory, series := end.resident/few.resident, float64(end.series)/float64(begin.series); max(memory, series) > m.limit {
		return fmt.Errorf("resident memory has grown %.2f times and the series of metrics %.2f times, want at most %.2f", memory, series, m.limit)
	}
	return nil
}

// next has the next version serve in the place of the present one.
func (m *measurement) next(ctx context.Context) error {
	at := func(version int) string { return filepath.Join(m.dir, m.model, strconv.Itoa(version)) }
	if err := os.Rename(at(m.last), at(m.last+1)); err != nil {
		return err
	}
	m.last++
	if err := m.client.LoadModel(ctx, m.model); err != nil {
		return err
	}
	return m.query(ctx, time.Second)
}

// query sends queries for so long.
func (m *measurement) query(ctx context.Context, over time.Duration) error {
	sizes := workload.Trace()
	model, err := bench.NewModel(ctx, m.client, m.model, bench.ModelOptions{LargestBatchSize: sizes.Largest(), Timeout: 10 * time.Second, Seed: 1})
	if err != nil {
		return err
	}
	arrivals, err := workload.ParseArrivals("poisson", m.rate)
	if err != nil {
		return err
	}
	queries, err := workload.Queries(uint64(m.last), arrivals, workload.Load{Model: m.model, Share: 1, BatchSizes: sizes})
	if err != nil {
		return err
	}
	_, err = bench.Run(ctx, m.client, []*bench.Model{model}, bench.Config{Queries: queries, Duration: over})
	return err
}

// rest waits until everything that is gone should be forgotten, and returns what is left then.
func (m *measurement) rest(ctx context.Context) (state, error) {
	for end := time.Now().Add(m.wait); time.Now().Before(end); {
		if err := m.query(ctx, 100*time.Millisecond); err != nil {
			return state{}, err
		}
		select {
		case <-time.After(min(10*time.Second, m.wait)):
		case <-ctx.Done():
			return state{}, ctx.Err()
		}
	}
	return m.look("in the end")
}

// A state is what an agent has at some time.
type state struct {
	resident, anonymous float64 // MB
	goes                float64 // MB that the Go runtime has, of the anonymous; the others are malloc's
	series              int
}

// look prints what there is.
func (m *measurement) look(when string) (s state, err error) {
	resp, err := http.Get("http://" + m.agent.Metrics + "/metrics")
	if err != nil {
		return s, err
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return s, err
	}
	for line := range bytes.Lines(body) {
		if line[0] == '#' {
			continue
		}
		s.series++
		for name, factor := range map[string]float64{"go_memstats_sys_bytes ": 1e-6, "go_memstats_heap_released_bytes ": -1e-6} {
			if rest, ok := strings.CutPrefix(string(line), name); ok {
				bytes, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
				if err != nil {
					return s, err
				}
				s.goes += factor * bytes
			}
		}
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", m.agent.PID()))
	if err != nil {
		return s, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		for prefix, to := range map[string]*float64{"VmRSS:": &s.resident, "RssAnon:": &s.anonymous} {
			if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
				if err != nil {
					return s, err
				}
				*to = kb * 1024 / 1e6
			}
		}
	}
	fmt.Printf("%-28s %6.1f MB resident, %6.1f of them anonymous: %6.1f of Go, %6.1f of malloc; %6d series\n", when, s.resident, s.anonymous, s.goes, s.anonymous-s.goes, s.series)
	return s, nil
}
