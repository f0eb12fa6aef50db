// Command leader measures the CPU time that a leader takes for a query.
//
//	go run ./scripts/bench/leader state    leader.State alone, in virtual time
//
// The measure is the CPU time of the process, which hardly depends on what else the machine does;
// what it implies for the queries/s of a core is a quotient. The exit status is 1 if a figure is
// above its limit.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// The limits, in us of CPU time a query.
const stateLimit = 7.0

// limitSize is the fleet for which the limits hold: larger ones and smaller ones are shown beside.
var limitSize = size{gateways: 100, lanes: 1000, models: 200}

func main() {
	var rounds, queries int
	var only, profile string
	root := &cobra.Command{Use: "leader", SilenceErrors: true, SilenceUsage: true,
		Short: "Measure the CPU time that a leader takes for a query"}
	flags := root.PersistentFlags()
	flags.IntVar(&rounds, "rounds", 5, "rounds, of which the medians count")
	flags.StringVar(&only, "only", "", "only this fleet: GATEWAYS,LANES,MODELS")
	flags.StringVar(&profile, "profile", "", "file for a CPU profile of the last round")
	state := &cobra.Command{Use: "state", Args: cobra.NoArgs, Short: "leader.State alone",
		RunE: func(*cobra.Command, []string) error {
			missed := false
			for _, of := range sizes(only) {
				// 80 queries/s on each lane, of 10 ms in the mean
				us, late, err := measureState(newFleet(of, 80*float64(of.lanes)), queries, rounds,
					profile)
				if err != nil {
					return fmt.Errorf("%v: %w", of, err)
				}
				slices.Sort(us)
				m := harness.Median(us)
				limited := of.lanes <= limitSize.lanes
				missed = missed || limited && m > stateLimit
				fmt.Printf("%v: %5.2f us a query (%.2f to %.2f%s), %6.0f queries/s of a core, "+
					"%.2f %% late\n", of, m, us[0], us[len(us)-1],
					map[bool]string{true: fmt.Sprintf("; limit %.0f", stateLimit)}[limited],
					1e6/m, 100*late)
			}
			if missed {
				return errors.New("a figure is above its limit")
			}
			return nil
		}}
	state.Flags().IntVar(&queries, "queries", 30000, "queries of a round")
	root.AddCommand(state)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

// sizes are the fleets to measure; only one if it is named.
func sizes(only string) (all []size) {
	if only != "" {
		var s size
		if _, err := fmt.Sscanf(strings.ReplaceAll(only, ",", " "), "%d %d %d", &s.gateways,
			&s.lanes, &s.models); err == nil {
			return []size{s}
		}
	}
	for _, models := range []int{1, 200} {
		for _, lanes := range []int{100, 1000, 5000} {
			for _, gateways := range []int{1, 100, 1000} {
				all = append(all, size{gateways, lanes, models})
			}
		}
	}
	return all
}
