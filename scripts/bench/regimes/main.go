// The command regimes runs the benchmark of decisions of package sim/regimes, and prints its table
// in Markdown. From the repository's root:
//
//	go run ./scripts/bench/regimes -o docs/internals/regimes.md
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/sim/regimes"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "regimes:", err)
		os.Exit(1)
	}
}

func run() error {
	only := flag.String("run", "", "run the regimes whose name matches this `regexp`")
	policies := flag.String("policies", "", "run these `policies` only, separated by commas")
	seeds := flag.String("seeds", "", "run with these `seeds`, separated by commas")
	short := flag.Bool("short", false, "take the fewer queries of the form that the tests run")
	out := flag.String("o", "", "write to this `file`, with the text around the table")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := &bench{short: *short, began: time.Now()}
	if err := b.choose(*only, *policies, *seeds); err != nil {
		return err
	}
	if err := b.run(ctx); err != nil {
		return err
	}
	if *out == "" {
		_, err := os.Stdout.Write(b.table.Bytes())
		return err
	}
	return os.WriteFile(*out, b.table.Bytes(), 0o644)
}

// A bench is one run of the command.
type bench struct {
	short    bool
	began    time.Time
	regimes  []*regimes.Regime
	policies []regimes.Policy
	seeds    []uint64 // nil: each regime's own
	table    bytes.Buffer
}

func (b *bench) choose(only, policies, seeds string) error {
	matching, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	all, err := regimes.List()
	if err != nil {
		return err
	}
	for _, r := range all {
		if matching.MatchString(r.Name) && (!b.short || r.ShortQueries > 0) {
			b.regimes = append(b.regimes, r)
		}
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(policies, ",") {
		wanted[name] = true
	}
	for _, p := range regimes.Policies() {
		if policies == "" || wanted[p.Name] {
			b.policies = append(b.policies, p)
			delete(wanted, p.Name)
		}
	}
	if delete(wanted, ""); len(wanted) > 0 || len(b.policies) == 0 {
		return fmt.Errorf("policies %q: got an unknown one, want some of %v", policies, names())
	}
	if seeds == "" {
		return nil
	}
	for text := range strings.SplitSeq(seeds, ",") {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("seeds %q: %w", seeds, err)
		}
		b.seeds = append(b.seeds, seed)
	}
	return nil
}

func names() (all []string) {
	for _, p := range regimes.Policies() {
		all = append(all, p.Name)
	}
	return all
}

// run runs the regimes and writes the table.
func (b *bench) run(ctx context.Context) error {
	if err := regimes.WriteHead(&b.table); err != nil {
		return err
	}
	clock := func() time.Duration { return time.Since(b.began) }
	var broken bytes.Buffer
	for i, r := range b.regimes {
		began := time.Now()
		var results []*regimes.Result
		for k := range b.policies {
			x, err := r.Run(ctx, &b.policies[k], &regimes.Options{
				Seeds: b.seedsOf(r), Short: b.short, Clock: clock,
			})
			if err != nil {
				return err
			}
			results = append(results, x)
		}
		if err := r.WriteRows(&b.table, results); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%d of %d: %s, %.1f s\n", i+1, len(b.regimes), r.Name,
			time.Since(began).Seconds())
		if b.policies[0].Name != regimes.Subject {
			continue
		}
		why, err := r.Broken(results)
		if err != nil {
			return err
		}
		for _, line := range why {
			fmt.Fprintf(&broken, "- %s, %s\n", r.Name, line)
		}
	}
	fmt.Fprintf(&b.table, "\nWhere a baseline is better by more than the rule allows:\n\n%s",
		broken.String())
	return nil
}

func (b *bench) seedsOf(r *regimes.Regime) []uint64 {
	if b.seeds != nil {
		return b.seeds
	}
	return r.SeedsOf(b.short)
}
