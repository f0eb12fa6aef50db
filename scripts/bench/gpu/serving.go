package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// A server is an agent on the card that serves unhurried models, and a client of it.
type server struct {
	*harness.Agent
	*client.Client
	repository string
}

func (s *server) stop() error { return errors.Join(s.Client.Close(), s.Agent.Stop()) }

// start starts an agent whose models have further settings, and waits until all are ready. It is to
// be stopped.
func (r *run) start(ctx context.Context, settings string) (*server, error) {
	repository, err := r.copyWithoutTargets(settings)
	if err != nil {
		return nil, err
	}
	state := filepath.Join(r.dir, "state")
	if err := os.RemoveAll(state); err != nil {
		return nil, err
	}
	agent, err := harness.Start(harness.Config{
		Muster: r.muster, Log: filepath.Join(r.dir, "agent.log"), Args: []string{
			"--model-dir", repository, "--state-dir", state, "--provider", "cuda",
			"--onnxruntime-lib", r.library,
		},
	})
	if err != nil {
		return nil, err
	}
	c, err := client.New([]string{agent.GRPC})
	if err != nil {
		return nil, errors.Join(err, agent.Stop())
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		ready, err := c.Ready(ctx)
		if err == nil && ready {
			return &server{agent, c, repository}, nil
		}
		if agent.HasExited() || time.Now().After(until) {
			return nil, errors.Join(fmt.Errorf("no agent: %w; its log is %s", err, agent.LogPath),
				agent.Stop())
		}
	}
}

// queryOf returns a query with random values.
func queryOf(repository, model string, batch int) (*oip.Request, error) {
	v, err := models.ReadVersion(repository, model, 1)
	if err != nil {
		return nil, err
	}
	inputs, err := runtime.RandomInputs(rand.New(rand.NewPCG(3, uint64(batch))), v, batch)
	return &oip.Request{Model: model, Inputs: inputs}, err
}

// closed has a number of clients send a query again and again, and returns all times in us and
// queries/s.
func closed(ctx context.Context, c *client.Client, q *oip.Request, clients int, d time.Duration) (
	us []float64, qps float64, err error) {
	start := time.Now()
	us, err = harness.Loop{Clients: clients, For: d,
		Send: func(ctx context.Context) (time.Duration, error) {
			answer, err := c.Infer(ctx, q)
			if err == nil {
				answer.Release()
			}
			return 0, err
		}}.Run(ctx)
	return us, float64(len(us)) / time.Since(start).Seconds(), err
}

// A servingResult is what an agent on the card gives clients of the SDK on this machine.
type servingResult struct {
	Model string  `json:"model"`
	Batch int     `json:"batch_size"`
	P50   float64 `json:"one_client_p50_us"`
	P99   float64 `json:"one_client_p99_us"`
	Eight float64 `json:"eight_clients_qps"`
	P99Of float64 `json:"eight_clients_p99_us"`
	// One and Four are queries/s of ONNX Runtime in Python, without a server, by threads.
	One  float64 `json:"python_cuda_1_thread_qps,omitempty"`
	Four float64 `json:"python_cuda_4_threads_qps,omitempty"`
}

// copyWithoutTargets copies the models, with targets that no query misses and further settings.
func (r *run) copyWithoutTargets(settings string) (string, error) {
	dir := filepath.Join(r.dir, "unhurried")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	for _, name := range names {
		from, to := filepath.Join(r.modelsPath(), name), filepath.Join(dir, name)
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			return "", err
		}
		text, err := os.ReadFile(filepath.Join(from, "model.yaml"))
		if err != nil {
			return "", err
		}
		text = append(harness.Unhurried(text), settings...)
		if err := os.WriteFile(filepath.Join(to, "model.yaml"), text, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// measureServing measures an agent on the card by gRPC, with one and with eight clients, in turns
// with ONNX Runtime in Python.
func (r *run) measureServing(ctx context.Context) error {
	agent, err := r.start(ctx, "")
	if err != nil {
		return err
	}
	defer func() { _ = agent.stop() }()
	bare, err := r.startBare(ctx)
	if err != nil {
		return err
	}
	defer bare.stop()
	fmt.Println("model batch  p50 us   p99 us   8 clients/s   p99 us  Python/s  4 threads/s  8/1  8/4")
	var all []servingResult
	for _, name := range names {
		for _, batch := range []int{1, 16, 64, 256} {
			q, err := queryOf(agent.repository, name, batch)
			if err != nil {
				return err
			}
			file, err := r.writeQuery(name, batch, q.Inputs)
			if err != nil {
				return err
			}
			s := servingResult{Model: name, Batch: batch}
			var one, many, alone, four, rate []float64
			if _, _, err := closed(ctx, agent.Client, q, 8, r.time); err != nil { // lanes learn
				return err
			}
			for range r.rounds {
				us, _, err := closed(ctx, agent.Client, q, 1, r.time)
				if err != nil {
					return err
				}
				one = append(one, us...)
				us, qps, err := closed(ctx, agent.Client, q, 8, r.time)
				if err != nil {
					return err
				}
				many, rate = append(many, us...), append(rate, qps)
				for threads, to := range map[int]*[]float64{1: &alone, 4: &four} {
					_, qps, err := bare.runQuery(file, threads, r.time)
					if err != nil {
						return err
					}
					*to = append(*to, qps)
				}
			}
			s.P50, s.P99 = harness.Quantile(one, .5), harness.Quantile(one, .99)
			s.Eight, s.P99Of = harness.Quantile(rate, .5), harness.Quantile(many, .99)
			s.One, s.Four = harness.Quantile(alone, .5), harness.Quantile(four, .5)
			all = append(all, s)
			fmt.Printf("%-5s %5d %7.0f %8.0f %13.0f %8.0f %9.0f %12.0f %5.2f %4.2f\n", name, batch,
				s.P50, s.P99, s.Eight, s.P99Of, s.One, s.Four, s.Eight/s.One, s.Eight/s.Four)
		}
	}
	r.results["serving"] = all
	return nil
}

// measureMerging measures queries/s of one item from 256 clients, merged and not.
func (r *run) measureMerging(ctx context.Context) error {
	rates := map[string]map[string]float64{}
	for _, settings := range []string{"", "merge: none\n"} {
		if err := r.measureWithSettings(ctx, settings, rates); err != nil {
			return err
		}
	}
	for _, name := range names {
		fmt.Printf("%-5s merged %.1f times\n", name, rates[name]["merged_qps"]/rates[name]["_qps"])
	}
	r.results["merging"] = rates
	return nil
}

// measureWithSettings measures queries/s of one item with further settings of the models, and adds
// them to rates.
func (r *run) measureWithSettings(ctx context.Context, settings string,
	rates map[string]map[string]float64) (
	err error) {
	agent, err := r.start(ctx, settings)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.stop()) }()
	for _, name := range names {
		q, err := queryOf(agent.repository, name, 1)
		if err != nil {
			return err
		}
		us, qps := []float64(nil), 0.
		for range 2 { // the first time lanes learn
			if us, qps, err = closed(ctx, agent.Client, q, 256, 10*r.time); err != nil {
				return err
			}
		}
		if rates[name] == nil {
			rates[name] = map[string]float64{}
		}
		rates[name][map[string]string{"": "merged"}[settings]+"_qps"] = qps
		fmt.Printf("%-5s %-12q %8.0f queries/s, p50 %.0f us, p99 %.0f us\n", name, settings, qps,
			harness.Quantile(us, .5), harness.Quantile(us, .99))
	}
	return nil
}
