// Package report writes the simulator's reports for people.
package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/fleet"
)

// Text writes a report for people.
func Text(w io.Writer, r *sim.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, policy %s, %s\n", r.Model, r.Pool, r.Policy, r.Source)
	for _, warning := range r.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", warning)
	}
	if r.Interrupted {
		b.WriteString("interrupted: this is what was known by then; rates are those known to " +
			"hold\n")
	}
	if r.Found != nil {
		fmt.Fprintf(
			&b,
			"allowable throughput %.2f queries/s, standard error %.2f (%d seeds of %d queries), "+
				"%.1f %% of the fluid limit %.2f\n",
			r.Found.Rate, r.StandardError, len(r.PerSeed), r.Queries, 100*r.Share, r.FluidLimit)
	} else {
		fmt.Fprintf(&b, "%.2f queries/s (fluid limit %.2f); %d seeds of %d queries\n", r.Rate,
			r.FluidLimit, len(r.Runs), r.Queries)
	}
	if r.SplitFluidLimit > 0 {
		fmt.Fprintf(&b, "%.2f %% of the queries split; with splitting the fluid limit is %.2f\n",
			100*r.SplitShare, r.SplitFluidLimit)
	}
	if r.Threshold > 0 {
		fmt.Fprintf(&b, "batch size threshold %d\n", r.Threshold)
	}
	if r.QoSSatisfaction != nil {
		fmt.Fprintf(&b, "within the QoS target %.3f %% (shared %.3f %%, base-only %.3f %%)\n",
			100**r.QoSSatisfaction, 100**r.QoSSatisfactionShared, 100**r.QoSSatisfactionBaseOnly)
		if r.EffectiveAccuracy > 0 {
			fmt.Fprintf(&b, "effective accuracy %.5f, variants bound by %s\n", r.EffectiveAccuracy,
				map[string]string{
					sim.BindByMatcher: "the matcher", sim.BindDrawn: "shares drawn",
				}[r.Bind])
		}
		fmt.Fprintf(&b, "latency p50 %.3f ms, p95 %.3f ms, p99 %.3f ms\n", r.Latency.P50,
			r.Latency.P95, r.Latency.P99)
	}
	if r.DecisionCostUs > 0 {
		fmt.Fprintf(&b, "a decision takes %.2f us\n", r.DecisionCostUs)
	}
	if len(r.Faults) > 0 {
		b.WriteByte('\n')
		writeFaults(&b, r)
	}
	if len(r.Runs) > 0 {
		b.WriteByte('\n')
		writeRuns(&b, r)
	}
	for _, run := range r.Runs {
		if run.Placement != nil {
			fmt.Fprintf(&b, "seed %d: ", run.Seed)
			if err := run.Placement.Text(&b); err != nil {
				return err
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeFaults writes, for each fault, the outcomes of the queries before and after it.
func writeFaults(b *strings.Builder, r *sim.Report) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "fault\tlate in %v before\tin %v after\tlost\tnext leader\t\n", fleet.Window,
		fleet.Window)
	late := func(c fleet.Count) string {
		return fmt.Sprintf("%d of %d (%.2f %%)", c.Late, c.Queries, 100*c.LateShare())
	}
	for _, f := range r.Faults {
		next := "-"
		switch {
		case f.NextLeader > 0:
			next = fmt.Sprintf("after %.1f ms, at most %.1f ms", f.WithoutLeaderMS,
				f.WithoutLeaderMaxMS)
		case f.HitLeader > 0:
			next = "none"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t\n", f.Fault, late(f.Before), late(f.After),
			f.After.Lost, next)
	}
	t.Flush()
	queries, overdue, lost := 0, 0, 0
	for _, run := range r.Runs {
		queries, overdue = queries+run.Queries, overdue+run.Late
		lost += run.Lost + run.NeverServed
	}
	fmt.Fprintf(b, "of all %d queries %d late, %d lost\n", queries, overdue, lost)
}

func writeRuns(b *strings.Builder, r *sim.Report) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	families := r.EffectiveAccuracy > 0
	fmt.Fprint(t, "seed\trate\twithin QoS\t")
	if families {
		fmt.Fprint(t, "accuracy\t")
	}
	fmt.Fprint(t, "p99 ms\tqueue mean\tlongest\t")
	for _, ty := range r.Runs[0].Types {
		fmt.Fprintf(t, "%s busy\t", ty.Type)
	}
	fmt.Fprintln(t)
	for _, run := range r.Runs {
		fmt.Fprintf(t, "%d\t%.2f\t%.3f %%\t", run.Seed, run.Rate, 100*run.QoSSatisfaction)
		if families {
			fmt.Fprintf(t, "%.5f\t", run.EffectiveAccuracy)
		}
		fmt.Fprintf(t, "%.3f\t%.2f\t%d\t", run.Latency.P99, run.QueueMean, run.QueueLongest)
		for _, ty := range run.Types {
			fmt.Fprintf(t, "%.1f %%\t", 100*ty.Utilisation)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	if models := r.Runs[0].Models; len(models) > 1 {
		b.WriteByte('\n')
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "seed\tmodel\tqueries\twithin QoS\tp50 ms\tp95 ms\tp99 ms\t")
		for _, run := range r.Runs {
			for _, m := range run.Models {
				fmt.Fprintf(t, "%d\t%s\t%d\t%.3f %%\t%.3f\t%.3f\t%.3f\t\n", run.Seed, m.Model,
					m.Queries, 100*m.QoSSatisfaction, m.Latency.P50, m.Latency.P95, m.Latency.P99)
			}
		}
		t.Flush()
	}
	if families {
		b.WriteByte('\n')
		writeVariants(b, r)
	}
}

// writeVariants writes what each variant has answered.
func writeVariants(b *strings.Builder, r *sim.Report) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "seed\tfamily\tqueries\twithin QoS\taccuracy\tanswered by\t")
	for _, run := range r.Runs {
		for _, m := range run.Models {
			if len(m.Variants) == 0 {
				continue
			}
			var by []string
			for _, v := range m.Variants {
				by = append(by, fmt.Sprintf("%s %.1f %%", v.Model,
					100*float64(v.Served)/float64(max(m.Served, 1))))
			}
			fmt.Fprintf(t, "%d\t%s\t%d\t%.3f %%\t%.5f\t%s\t\n", run.Seed, m.Model, m.Queries,
				100*m.QoSSatisfaction, m.EffectiveAccuracy, strings.Join(by, ", "))
		}
	}
	t.Flush()
}
