// The command regimes runs the benchmark of decisions of package sim/regimes, and prints its tables
// in Markdown. From the repository's root:
//
//	go run ./scripts/bench/regimes -o docs/internals/regimes.md
package main

import (
	"bytes"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/muster-serve/muster/sim/regimes"
)

//go:embed head.md
var head string

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
	short := flag.Bool("short", false, "run the form of the tests, with fewer queries and regimes")
	out := flag.String("o", "", "write to this `file`, with the text around the tables")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("got the arguments %q, want flags only", flag.Args())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := &bench{short: *short, began: time.Now()}
	if err := b.chooseRegimes(*only, *policies, *seeds); err != nil {
		return err
	}
	if err := b.run(ctx); err != nil {
		return err
	}
	if *out == "" {
		return b.write(os.Stdout)
	}
	var page bytes.Buffer
	if err := b.writePage(&page); err != nil {
		return err
	}
	return os.WriteFile(*out, page.Bytes(), 0o644)
}

// A bench is one run of the command.
type bench struct {
	short    bool
	began    time.Time
	regimes  []*regimes.Regime
	policies []regimes.Policy
	seeds    []uint64 // nil: each regime's own
	// rows and breaks are those of the tables. broken counts the regimes that break the rule.
	rows, breaks bytes.Buffer
	broken       int
}

func (b *bench) chooseRegimes(only, policies, seeds string) error {
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
	if len(b.regimes) == 0 {
		return fmt.Errorf("regimes %q: got none of that name, there are: %s", only, names(all,
			func(r *regimes.Regime) string { return r.Name }))
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
		return fmt.Errorf("policies %q: got one that is unknown, there are: %s", policies,
			names(regimes.Policies(), func(p regimes.Policy) string { return p.Name }))
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

// names lists the names of all.
func names[T any](all []T, name func(T) string) string {
	var out []string
	for _, x := range all {
		out = append(out, name(x))
	}
	return strings.Join(out, ", ")
}

// run runs the regimes.
func (b *bench) run(ctx context.Context) error {
	clock := func() time.Duration { return time.Since(b.began) }
	for i, r := range b.regimes {
		began := time.Now()
		var results []*regimes.Result
		for k := range b.policies {
			seeds := b.seeds
			if seeds == nil {
				seeds = r.SeedsOf(b.short)
			}
			x, err := r.Run(ctx, &b.policies[k], &regimes.Options{
				Seeds: seeds, Short: b.short, Clock: clock,
			})
			if err != nil {
				return err
			}
			results = append(results, x)
		}
		if err := r.WriteRows(&b.rows, results); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%d of %d: %s, %.1f s\n", i+1, len(b.regimes), r.Name,
			time.Since(began).Seconds())
		if b.policies[0].Name != regimes.Subject {
			continue // nothing to hold against the others
		}
		breaks, err := r.Broken(results)
		if err != nil {
			return err
		}
		if len(breaks) > 0 {
			b.broken++
		}
		if err := r.WriteBreaks(&b.breaks, breaks); err != nil {
			return err
		}
	}
	return nil
}

// write writes the tables.
func (b *bench) write(w io.Writer) error {
	if err := regimes.WriteHead(w); err != nil {
		return err
	}
	if _, err := w.Write(b.rows.Bytes()); err != nil {
		return err
	}
	if b.breaks.Len() == 0 {
		return nil
	}
	if _, err := fmt.Fprintf(w, "\n%s:\n\n", b.summaryLine()); err != nil {
		return err
	}
	if err := regimes.WriteBreaksHead(w); err != nil {
		return err
	}
	_, err := w.Write(b.breaks.Bytes())
	return err
}

func (b *bench) summaryLine() string {
	return fmt.Sprintf("%d of %d regimes break the rule", b.broken, len(b.regimes))
}

// writePage writes the tables with the text around them.
func (b *bench) writePage(w io.Writer) error {
	page, err := template.New("head").Parse(head)
	if err != nil {
		return err
	}
	rule := regimes.DescribeRule()
	if b.seeds != nil {
		rule.Seeds = len(b.seeds)
	}
	if err := page.Execute(w, rule); err != nil {
		return err
	}
	if err := b.writeExceptions(w); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "## Where the rule is broken\n\n%s.\n\n",
		b.summaryLine()); err != nil {
		return err
	}
	if b.breaks.Len() > 0 {
		if err := regimes.WriteBreaksHead(w); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s\n", b.breaks.Bytes()); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprint(w, "## The regimes\n\n"); err != nil {
		return err
	}
	for _, r := range b.regimes {
		if _, err := fmt.Fprintf(w, "%s\n", wrap("- **"+r.Name+"**: "+r.About+".")); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprint(w, "\n## The table\n\n"); err != nil {
		return err
	}
	if err := regimes.WriteHead(w); err != nil {
		return err
	}
	_, err = w.Write(b.rows.Bytes())
	return err
}

// writeExceptions writes for which regimes the rule does not hold.
func (b *bench) writeExceptions(w io.Writer) error {
	written := map[string]bool{}
	for _, r := range b.regimes {
		why := r.Exception()
		if why == "" || written[r.Group()] {
			continue
		}
		if len(written) == 0 {
			if _, err := fmt.Fprint(w, "Exceptions:\n\n"); err != nil {
				return err
			}
		}
		written[r.Group()] = true
		if _, err := fmt.Fprintf(w, "%s\n", wrap("- **"+r.Group()+"**: "+why)); err != nil {
			return err
		}
	}
	if len(written) == 0 {
		_, err := fmt.Fprint(w, "It has no exceptions.\n\n")
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

// wrap wraps an item of a list.
func wrap(text string) string {
	const width = 100
	var out strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		n := len([]rune(word))
		switch {
		case i == 0:
		case column+1+n > width:
			out.WriteString("\n  ")
			column = 2
		default:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(word)
		column += n
	}
	return out.String()
}
