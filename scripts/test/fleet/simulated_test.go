//go:build fleet

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/scripts/test/harness"
	"github.com/muster-serve/muster/sim/placement"
)

// A placedPhase is what was found at one rate.
type placedPhase struct {
	what          string
	times         float64 // the first rate
	queries, late int
	accuracy      float64
}

// placedPhases are as long as this each.
const placedPhases = time.Minute

// addReport adds what a load's report says to a phase.
func (p *placedPhase) addReport(r *bench.Report, c harness.Count) {
	p.queries, p.late = c.Queries, c.Late+c.Failed+c.Refused+c.Robbed
	sum := 0.
	for _, m := range r.Models {
		sum += m.EffectiveAccuracy
	}
	p.accuracy = sum / float64(max(1, len(r.Models)))
}

// compareWithSimulated says what the simulator finds of the same agents, latencies, families and
// rates, beside what was found live, and wants that they are alike: the accuracy within 5 %, and of
// all queries a share late within 5 points. The simulator's leader is not killed, so that the phase
// in which live one is killed has an agent less for a while.
func (p *placedRun) compareWithSimulated(ctx context.Context, rate float64,
	live []placedPhase) error {
	var csv strings.Builder
	fmt.Fprintln(&csv, strings.Join(profiles.SamplesHeader(), ","))
	args := []string{"sim", "place", "--json", "--seeds", "1", "--pool", placedType + "=6",
		"--merge", "none", "--batch", "fixed:1", "--rate", fmt.Sprint(rate),
		"--qos-ms", fmt.Sprint(placedTarget.Milliseconds()),
		"--load-time-ms", "200",
		"--samples", filepath.Join(p.dir, "samples.csv"),
	}
	for _, family := range placedFamilies {
		var variants []string
		for _, v := range placedVariants {
			name := family + "-" + v.suffix
			variants = append(variants, fmt.Sprintf("%s:%g", name, v.accuracy))
			for _, batch := range []int{1, 1024} {
				for range 20 {
					fmt.Fprintf(&csv, "%s,%s,%d,%g\n", name, placedType, batch,
						v.latency.Seconds()*1e3)
				}
			}
		}
		args = append(args, "--family", family+"="+strings.Join(variants, ","),
			"--hold", fmt.Sprintf("%s=2:%s", placedType, family+"-"+placedVariants[0].suffix))
	}
	load, queries := []string{}, 0.
	for i, phase := range live {
		lasts := placedPhases
		if i == 0 {
			lasts += placement.WarmUp
		}
		load = append(load, fmt.Sprintf("%s:%g", lasts, phase.times))
		queries += phase.times * rate * lasts.Seconds()
	}
	args = append(args, "--load", strings.Join(load, ","), "--queries", fmt.Sprint(int(queries)))
	if err := os.WriteFile(filepath.Join(p.dir, "samples.csv"), []byte(csv.String()), 0o644); err !=
		nil {
		return err
	}
	out, err := harness.Output(ctx, "", p.muster, args...)
	if err != nil {
		return err
	}
	var found struct {
		PerSeed []struct {
			Placement placement.Result `json:"placement"`
		} `json:"per_seed"`
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return err
	}
	if len(found.PerSeed) != 1 {
		return errors.New("muster sim printed no run")
	}
	placed := found.PerSeed[0].Placement
	for i, phase := range live {
		from := placement.WarmUp + time.Duration(i)*placedPhases
		var ended, late int
		accuracy := 0.
		for _, w := range placed.Windows {
			if at := time.Duration(w.StartS * 1e9); at >= from && at < from+placedPhases {
				ended, late = ended+w.Ended, late+w.Late
				accuracy += w.Accuracy * float64(w.Ended)
			}
		}
		accuracy /= float64(max(1, ended))
		share := func(n, of int) float64 { return float64(n) / float64(max(1, of)) }
		liveLate, simLate := share(phase.late, phase.queries), share(late, ended)
		p.wantQuiet(math.Abs(phase.accuracy/accuracy-1) <= .05 && math.Abs(liveLate-simLate) <= .05,
			"%s: accuracy %.4f live, %.4f simulated; %.2f %% of %d late live, %.2f %% of %d simulated; "+
				"want accuracies within 5 %% and late shares within 5 points", phase.what,
			phase.accuracy, accuracy, 100*liveLate, phase.queries, 100*simLate, ended)
	}
	p.printLine("  simulated: %d placements, %d changes of agents", placed.Versions, placed.Changes)
	return nil
}
