package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Output runs a program in a directory ("" is this one) and returns its standard output, trimmed.
// An error has what the program said on its standard error.
func Output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("run %s: %w: %s", strings.Join(cmd.Args, " "), err,
			strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(string(out)), err
}

// Pool writes instance types as the simulator reads them: "g4dn.xlarge=2,r5n.large=9".
func Pool(types []string) string {
	var parts []string
	for i, t := range types {
		if slices.Index(types, t) == i {
			n := 0
			for _, o := range types {
				if o == t {
					n++
				}
			}
			parts = append(parts, fmt.Sprintf("%s=%d", t, n))
		}
	}
	return strings.Join(parts, ",")
}

// simulate runs `muster sim` with args on a pool, and returns a number of its JSON by its key.
func simulate(ctx context.Context, muster, figure, pool string, args ...string) (float64, error) {
	out, err := Output(ctx, "", muster,
		slices.Concat([]string{"sim"}, args, []string{"--json", "--pool", pool})...)
	if err != nil {
		return 0, err
	}
	var found map[string]any
	err = json.Unmarshal([]byte(out), &found)
	x, ok := found[figure].(float64)
	if err != nil || !ok {
		return 0, fmt.Errorf("muster sim of %s printed no %s: %v\n%s", pool, figure, err, out)
	}
	return x, nil
}

// AllowableThroughput is the highest rate, in queries/s, at which a pool keeps a model's QoS target
// in simulation; 0 if it keeps it at no rate. The search takes some seconds.
func AllowableThroughput(ctx context.Context, muster, model, pool string,
	roundTrip time.Duration) (float64, error) {
	return simulate(ctx, muster, "allowable_throughput_qps", pool,
		"throughput", "--model", model, "--rtt-ms", fmt.Sprint(float64(roundTrip)/1e6))
}

// FluidLimit is the rate, in queries/s, that a pool could serve of the models, by their shares, if
// queries could be divided at will. It is an upper bound.
func FluidLimit(ctx context.Context, muster, pool string, shares map[string]float64) (float64,
	error) {
	args := []string{"--rate", "1", "--queries", "10", "--seeds", "1"}
	for model, share := range shares {
		args = append(args, "--model", fmt.Sprintf("%s=%g", model, share))
	}
	return simulate(ctx, muster, "fluid_limit_qps", pool, args...)
}
