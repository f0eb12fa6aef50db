package sim

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"strconv"
	"testing"
)

// TestOverload: below what a pool can serve no query is rejected. At three times that those that
// cannot be served are, most of them within the QoS target, hardly any waits until its deadline in
// vain, and no fewer are in time than at the limit.
func TestOverload(t *testing.T) {
	for _, tt := range []struct {
		model     string
		pool      Pool
		allowable float64 // queries/s, as FindThroughput says
	}{
		{"rm2", Pool{{"g4dn.xlarge", 1}}, 6.3},
		{"mtwnd", Pool{{"g4dn.xlarge", 2}, {"r5n.large", 9}}, 980},
		{"mtwnd", Pool{{"g4dn.xlarge", 6}, {"r5n.large", 27}}, 3300}, // in shards
		{"dien", Pool{{"g4dn.xlarge", 1}, {"r5n.large", 4}}, 195},
	} {
		t.Run(fmt.Sprint(tt.model, tt.pool), func(t *testing.T) {
			cfg := reference(t, tt.model)
			target := qosTargets[tt.model]
			cfg.Policy, cfg.Pool, cfg.Queries = "horizon", tt.pool, 10_000
			cfg.RTT, cfg.Deadline = target/50, 10*target
			cfg.Rate = 0.9 * tt.allowable
			if below := mustRun(t, cfg); below.Rejected+below.Dropped > 0 {
				t.Errorf("below the limit %d are rejected, %d dropped, want none", below.Rejected,
					below.Dropped)
			}

			var log bytes.Buffer
			cfg.Rate, cfg.Log = 3*tt.allowable, &log
			res := mustRun(t, cfg)
			if share := float64(res.Dropped) / float64(res.Queries); share > 0.03 {
				t.Errorf("%.1f %% wait until their deadline, want hardly any", 100*share)
			}
			if onTime := float64(res.Queries-res.Late) / float64(res.Queries); 3*onTime < 1 {
				t.Errorf("%.1f %% are in time, want at least a third", 100*onTime)
			}
			rows, err := csv.NewReader(&log).ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			soon := 0
			for _, row := range rows[1:] {
				ms, err := strconv.ParseFloat(row[6], 64)
				if err != nil {
					t.Fatal(err)
				}
				if row[4] == Rejected.String() && ms <= float64(target)/1e6 {
					soon++
				}
			}
			if res.Rejected == 0 || float64(soon) < 0.75*float64(res.Rejected) {
				t.Errorf(
					"%d of %d rejected are within the QoS target, want nearly all but those of "+
						"the first moment", soon, res.Rejected)
			}
		})
	}
}
