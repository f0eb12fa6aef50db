package process

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"
)

// AllowableThroughput has the binary simulate what a pool, like "g4dn.xlarge=2,r5n.large=4", can
// serve of a model, in queries/s; 0 where it keeps the QoS target at no rate.
func AllowableThroughput(ctx context.Context, muster, model, pool string, roundTrip time.Duration) (float64, error) {
	cmd := exec.CommandContext(ctx, muster, "sim", "--model", model, "--pool", pool, "--find-throughput", "--json",
		"--rtt-ms", fmt.Sprint(float64(roundTrip)/1e6))
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", cmd, err)
	}
	var found struct {
		AllowableQPS *float64 `json:"allowable_throughput_qps"`
	}
	if err := json.Unmarshal(out, &found); err != nil || found.AllowableQPS == nil {
		return 0, fmt.Errorf("%s printed no allowable throughput: %v\n%s", cmd, err, out)
	}
	return *found.AllowableQPS, nil
}
