// The command pools compares what two builds of muster reach on the five published pools: the mean
// share of the fluid limit of the policy horizon, split and merged, on seeds 1 to 5 and 1001 to
// 1005. The builds take turns, so that both see the same machine:
//
//	go run ./scripts/bench/pools -old ../old/bin/muster -new bin/muster
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
)

// pools are the published models and their pools.
var pools = []struct{ model, pool string }{
	{"ncf", "g4dn.xlarge=1,r5n.large=13"}, {"rm2", "g4dn.xlarge=1,r5n.large=13"},
	{"wnd", "g4dn.xlarge=1,r5n.large=13"}, {"mtwnd", "g4dn.xlarge=2,r5n.large=9"},
	{"dien", "g4dn.xlarge=2,r5n.large=9"},
}

// firsts are the first seeds of the two sets. Policies are tuned with the first set.
var firsts = []int{1, 1001}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pools:", err)
		os.Exit(1)
	}
}

func run() error {
	older := flag.String("old", "", "the `binary` to compare with; empty: none")
	newer := flag.String("new", "bin/muster", "the `binary` that is compared")
	seeds := flag.Int("seeds", 5, "number of seeds of each set")
	queries := flag.Int("queries", 20_000, "number of queries of each run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	builds := []string{*newer}
	if *older != "" {
		builds = []string{*older, *newer}
	}
	fmt.Print("| seeds | model |")
	for _, b := range builds {
		fmt.Printf(" %s |", b)
	}
	fmt.Print("\n| --- | --- |")
	for range builds {
		fmt.Print(" --- |")
	}
	fmt.Println()
	for _, first := range firsts {
		means := make([]float64, len(builds))
		for _, p := range pools {
			sums := make([]float64, len(builds))
			for i := range *seeds {
				for k, b := range builds {
					share, err := share(ctx, b, p.model, p.pool, first+i, *queries)
					if err != nil {
						return err
					}
					sums[k] += share / float64(*seeds)
				}
			}
			row(first, *seeds, p.model, sums)
			for k := range builds {
				means[k] += sums[k] / float64(len(pools))
			}
		}
		row(first, *seeds, "mean", means)
	}
	return nil
}

func row(first, seeds int, model string, shares []float64) {
	fmt.Printf("| %d-%d | %s |", first, first+seeds-1, model)
	for _, s := range shares {
		fmt.Printf(" %.4f |", s)
	}
	fmt.Println()
}

// share is the allowable throughput that a build finds, as a share of the fluid limit.
func share(ctx context.Context, build, model, pool string, seed, queries int) (float64, error) {
	// --find-throughput and not "throughput": the other build may be one without that command.
	cmd := exec.CommandContext(ctx, build, "sim", "--find-throughput", "--samples", "published",
		"--model", model, "--pool", pool, "--seeds", "1", "--seed", strconv.Itoa(seed),
		"--queries", strconv.Itoa(queries), "--json")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", cmd, err)
	}
	var found struct {
		Limit float64 `json:"fluid_limit_qps"`
		Rate  float64 `json:"allowable_throughput_qps"`
	}
	if err := json.Unmarshal(out, &found); err != nil {
		return 0, fmt.Errorf("%s: %w", cmd, err)
	}
	if !(found.Limit > 0) {
		return 0, fmt.Errorf("%s: the fluid limit is %v, want above 0", cmd, found.Limit)
	}
	return found.Rate / found.Limit, nil
}
