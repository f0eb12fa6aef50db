// Command leader measures the CPU time that a leader takes for a query.
//
//	go run ./scripts/bench/leader state    leader.State alone, in virtual time
//	go run ./scripts/bench/leader streams  with the streams of gateways and agents, beside a bare
//	                                       relay of the same messages
//	go run ./scripts/bench/leader cells    a fleet in cells, a leader each, in virtual time
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
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// The limits, in us of CPU time a query.
const stateLimit, streamsLimit = 7.0, 12.0

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
	var rate float64
	var during time.Duration
	streams := &cobra.Command{Use: "streams", Args: cobra.NoArgs,
		Short: "A leader with its streams, beside a bare relay",
		RunE: func(*cobra.Command, []string) error {
			of := limitSize
			if only != "" {
				of = sizes(only)[0]
			}
			f := newStreamFleet(of, rate)
			bare, err := measureStreams(f, "relay", rounds, during, "")
			if err != nil {
				return err
			}
			us, err := measureStreams(f, "serve", rounds, during, profile)
			if err != nil {
				return err
			}
			m, b := harness.Median(us.us), harness.Median(bare.us)
			fmt.Printf("%v, %.0f queries/s: %.1f us a query (limit %.0f), bare relay %.1f us, "+
				"%.2f x; without queries %.2f and %.2f of a core; %.2f answered\n", of, rate, m,
				streamsLimit, b, m/b, us.idle, bare.idle, us.answered)
			if us.answered < 0.95 {
				return errors.New("the machine was too busy for the load: the figure says nothing")
			}
			if m > streamsLimit {
				return errors.New("the figure is above its limit")
			}
			return nil
		}}
	streams.Flags().Float64Var(&rate, "rate", 4000, "queries/s")
	streams.Flags().DurationVar(&during, "time", 4*time.Second, "time of a round")
	var lanes int
	cells := &cobra.Command{Use: "cells", Args: cobra.NoArgs,
		Short: "A fleet of three zones in cells, a leader each, in virtual time",
		RunE: func(*cobra.Command, []string) error {
			for _, p := range cellPlans() {
				if !strings.HasPrefix(p.name, only) {
					continue
				}
				w, err := newCellWorld(p, size{gateways: 300, lanes: lanes, models: 200})
				if err != nil {
					return err
				}
				w.run()
				fmt.Println(w)
			}
			return nil
		}}
	cells.Flags().IntVar(&lanes, "lanes", 10000, "agents, of one lane each")
	root.AddCommand(state, streams, cells)
	for _, what := range []string{"serve", "relay"} { // streams starts this program again
		root.AddCommand(&cobra.Command{Use: what, Hidden: true, Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return serveMain(what == "relay") }})
	}
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
