package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/test/harness"
)

const (
	cpuAgents = 2
	cpuCores  = 4 // of each
)

// A point is a mixed fleet at a rate, live and simulated.
type point struct {
	Rate  float64 `json:"rate_qps"`
	Share float64 `json:"of_allowable_throughput"`
	// Within are percent of the queries within the QoS target.
	Within          float64         `json:"within_percent"`
	LatencyMS       bench.Latencies `json:"latency_ms"`
	SimulatedWithin float64         `json:"simulated_within_percent"`
	SimulatedP50    float64         `json:"simulated_p50_ms"`
	SimulatedP99    float64         `json:"simulated_p99_ms"`
}

// testFleet has an agent on the card and two on the CPU serve DIEN, whose small queries are faster
// on the CPU and whose large ones are on the card, with the batch sizes of the production trace. It
// measures both kinds first, simulates the fleet with these latencies, and then runs it at some
// rates.
func (r *run) testFleet(ctx context.Context) error {
	const model = "dien"
	samples := filepath.Join(r.dir, "samples.csv")
	for kind, args := range map[string][]string{
		"gpu": {"--provider", "cuda"}, "cpu": {"--provider", "cpu", "--cores",
			fmt.Sprint(cpuCores)},
	} {
		if _, err := r.sampleModels(ctx, kind+".csv", []string{model},
			append(args, "--instance-type", kind)...); err != nil {
			return err
		}
	}
	if err := join(samples, filepath.Join(r.dir, "gpu.csv"), filepath.Join(r.dir,
		"cpu.csv")); err != nil {
		return err
	}
	pool := fmt.Sprintf("gpu=1,cpu=%d", cpuAgents)
	simulate := func(args ...string) (found struct {
		Allowable float64 `json:"allowable_throughput_qps"`
		Within    float64 `json:"qos_satisfaction"`
		Latency   struct {
			P50 float64 `json:"p50"`
			P99 float64 `json:"p99"`
		} `json:"latency_ms"`
	}, err error) {
		out, err := harness.Output(ctx, "", r.muster, slices.Concat([]string{"sim"}, args, []string{
			"--json", "--model", model, "--pool", pool, "--samples", samples, "--rtt-ms", "0.3",
			"--queries", "10000",
		})...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &found)
		}
		return found, err
	}
	limit, err := simulate("throughput", "--seeds", "1")
	if err != nil {
		return err
	}
	fmt.Printf("simulated allowable throughput of %s: %.0f queries/s\n", pool, limit.Allowable)

	f := &harness.Fleet{Muster: r.muster, Dir: filepath.Join(r.dir, "fleet"),
		Models: []string{model},
		Args:   []string{"--onnxruntime-lib", r.library}}
	defer f.Stop()
	if err := os.RemoveAll(f.Dir); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(f.Dir, "models", model),
		os.DirFS(filepath.Join(r.modelsPath(), model))); err != nil {
		return err
	}
	for range cpuAgents {
		if _, err := f.Add(ctx, "cpu", "--provider", "cpu", "--cores",
			fmt.Sprint(cpuCores)); err != nil {
			return err
		}
	}
	if _, err := f.Add(ctx, "gpu", "--provider", "cuda", "--leader", "never"); err != nil {
		return err
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	var points []point
	fmt.Println("of limit  queries/s   within %  p50 ms  p99 ms   simulated: within %  p50 ms  p99 ms")
	for i, share := range []float64{.5, .5, .8, .95, 1.1} {
		p := point{Rate: share * limit.Allowable, Share: share}
		out, err := harness.Output(ctx, "", r.muster, "bench", "--server",
			strings.Join(f.Addresses(), ","), "--model", model, "--rate", fmt.Sprint(p.Rate),
			"--duration", "6s", "--json", "-", "--seed", fmt.Sprint(i+1))
		if err != nil {
			return err
		}
		var report bench.Report
		if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Models) == 0 {
			return fmt.Errorf("muster bench printed %s: %w", out, err)
		}
		live := report.Models[0]
		p.Within, p.LatencyMS = 100*live.QoSSatisfaction, live.LatencyMS
		simulated, err := simulate("--rate", fmt.Sprint(p.Rate), "--seeds", "1")
		if err != nil {
			return err
		}
		p.SimulatedWithin, p.SimulatedP50, p.SimulatedP99 = 100*simulated.Within,
			simulated.Latency.P50, simulated.Latency.P99
		if i == 0 {
			continue // the leader learns
		}
		points = append(points, p)
		fmt.Printf("%8.2f %10.0f %10.2f %7.2f %7.2f %21.2f %7.2f %7.2f\n", share, p.Rate, p.Within,
			p.LatencyMS.P50, p.LatencyMS.P99, p.SimulatedWithin, p.SimulatedP50, p.SimulatedP99)
	}
	out, err := harness.Output(ctx, "", r.muster, "status", "--server", f.Nodes[0].GRPC)
	fmt.Println(out)
	r.results["fleet"] = points
	return err
}

// join writes files of samples as one.
func join(to string, files ...string) error {
	var all []byte
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if _, after, ok := bytes.Cut(text, []byte("\n")); ok && i > 0 {
			text = after // without the header
		}
		all = append(all, text...)
	}
	return os.WriteFile(to, all, 0o644)
}
