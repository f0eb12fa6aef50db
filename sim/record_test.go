package sim

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader"
)

func TestReplay(t *testing.T) {
	for _, policy := range []string{"kairos", "fcfs", "horizon"} {
		cfg := reference(t, "dien")
		cfg.Models[0].Splits = true
		var recording bytes.Buffer
		cfg.Policy, cfg.Record, cfg.Queries, cfg.Rate, cfg.RTT, cfg.Deadline = policy, &recording,
			1000, 3000, time.Millisecond, 40*time.Millisecond
		res := mustRun(t, cfg)
		// Gateways drop some queries before the leader has decided about them.
		if res.Dropped == 0 || res.Served == 0 {
			t.Errorf("the run has %+v, want queries dropped and served", res.OutcomeCounts)
		}
		replayed, err := leader.Replay(bytes.NewReader(recording.Bytes()))
		if err != nil {
			t.Fatalf("%s: %v", policy, err)
		}
		if replayed.Policy != policy || replayed.Events != res.Steps || replayed.Decisions < 800 {
			t.Errorf("%s: replayed %+v after %d steps", policy, replayed, res.Steps)
		}

		lines := strings.SplitAfter(recording.String(), "\n")
		for i, line := range lines {
			if strings.HasPrefix(line, "assign ") {
				changed := strings.Join(lines[:i], "") +
					strings.Replace(line, "lane=", "lane=9", 1) + strings.Join(lines[i+1:], "")
				if _, err := leader.Replay(strings.NewReader(changed)); err == nil ||
					!strings.Contains(err.Error(), "the leader decides") {
					t.Errorf("another lane: %v", err)
				}
				if _, err := leader.Replay(strings.NewReader(strings.Join(lines[:i], ""))); err ==
					nil {
					t.Error("no error of a recording without its last decision")
				}
				if _, err := leader.Replay(strings.NewReader(strings.Join(lines[:i+1], "") +
					line)); err == nil || !strings.Contains(err.Error(), "nothing more") {
					t.Errorf("a decision twice: %v", err)
				}
				break
			}
		}
	}
}

func FuzzReplay(f *testing.F) {
	cfg := reference(f, "ncf")
	cfg.Queries = 3
	var recording bytes.Buffer
	cfg.Record = &recording
	mustRun(f, cfg)
	f.Add(recording.Bytes())
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = leader.Replay(bytes.NewReader(data)) // must not panic
	})
}
