package placecmd

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/place"
)

func newSolveCommand() *cobra.Command {
	var steps int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "solve FILE",
		Short: "Find the best placement for a problem in a file",
		Long: `Find how many agents of each type should hold which variant, or which layout of
variants. The best placement serves the largest share of the demand, and of those
that serve this share it has the highest accuracy; with "objective": "fewest" it has
the fewest agents instead. FILE is JSON, "-" is the standard input;
docs/placement.md describes it.

The answer has an upper bound of the accuracy: no placement that serves the same
share has a higher one. --steps bounds the search; a thousand take some
milliseconds. The same steps give the same answer on every machine.`,
		Example: `  muster place solve problem.json
  muster place solve problem.json --steps 1000000 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := readProblem(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			a, err := p.solve(steps)
			if err != nil {
				return err
			}
			if asJSON {
				return terminal.PrintJSON(cmd.OutOrStdout(), a)
			}
			return a.writeText(cmd.OutOrStdout(), p)
		},
	}
	cmd.Flags().IntVar(&steps, "steps", place.DefaultSteps,
		"maximum steps of the search; one takes some microseconds")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// maxAgents is the largest count of a type.
const maxAgents = 1_000_000_000

// A problem is a file as a program. Each family is a class, and each rate or layout a choice.
type problem struct {
	place.Program
	layouts bool // the file has layouts
}

// readProblem reads a problem. Its errors name what is wrong by path.
func readProblem(path string, stdin io.Reader) (*problem, error) {
	d, root, err := readDocument(path, stdin)
	if err != nil {
		return nil, err
	}
	p := &problem{}
	p.read(d, root)
	if err := d.err(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *problem) read(d *document, root element) {
	fields := root.readFields([]string{"types", "variants", "demand"},
		[]string{"rates", "layouts", "objective", "note"})
	if fields == nil {
		return
	}
	types, variants := names{what: "type"}, names{what: "variant"}
	for _, e := range fields["types"].readItems() {
		if f := e.readFields([]string{"name", "count"}, nil); f != nil {
			types.add(f["name"])
			p.Types = append(p.Types, place.Type{
				Name: f["name"].readText(), Count: f["count"].readCount(maxAgents),
			})
		}
	}
	families := map[string]int{}
	for _, e := range fields["variants"].readItems() {
		if f := e.readFields([]string{"name", "family", "accuracy"}, nil); f != nil {
			variants.add(f["name"])
			v := place.Variant{
				Model: f["name"].readText(), Family: f["family"].readText(),
				Accuracy: f["accuracy"].readNumber(),
			}
			if _, ok := families[v.Family]; !ok {
				families[v.Family] = len(p.Classes)
				p.Classes = append(p.Classes, place.Class{Family: v.Family})
			}
			p.Variants = append(p.Variants, v)
		}
	}
	if e, ok := fields["objective"]; ok {
		if e.value == "fewest" {
			p.Objective = place.FewestAgents
		} else {
			e.addFault(`is %s, want "fewest" or nothing`, e.foundText())
		}
	}
	rates, hasRates := fields["rates"]
	layouts, hasLayouts := fields["layouts"]
	switch {
	case hasRates && hasLayouts:
		layouts.addFault("is given beside rates, want one of them")
	case hasRates:
		p.readRates(rates, &types, &variants, families)
	case hasLayouts:
		p.layouts = true
		p.readLayouts(layouts, &types, &variants, families)
	default:
		d.addFault("rates", "is missing, as is layouts; want one of them")
	}
	demanded, rate := fields["demand"].readMembers()
	for i, family := range demanded {
		if k, ok := families[family]; ok {
			p.Classes[k].Rate = rate[i].readNumber()
		} else {
			rate[i].addFault("no variant is of this family")
		}
	}
}

func (p *problem) readRates(e element, types, variants *names, families map[string]int) {
	seen := map[[2]int]string{}
	for _, e := range e.readItems() {
		f := e.readFields([]string{"type", "variant", "qps"}, nil)
		if f == nil {
			continue
		}
		t, v, qps := types.indexOf(f["type"]), variants.indexOf(f["variant"]), f["qps"].readNumber()
		if t < 0 || v < 0 {
			continue
		}
		if first, ok := seen[[2]int{t, v}]; ok {
			e.addFault("is of the same type and variant as %s", first)
			continue
		}
		seen[[2]int{t, v}] = e.path
		p.Choices = append(p.Choices, place.Choice{
			Type: t, Layout: p.Variants[v].Model,
			Partitions: [][]place.Service{{p.serviceOf(v, qps, families)}},
		})
	}
}

func (p *problem) serviceOf(v int, qps float64, families map[string]int) place.Service {
	return place.Service{Class: families[p.Variants[v].Family], Variant: v, Rate: qps}
}

func (p *problem) readLayouts(e element, types, variants *names, families map[string]int) {
	seen := map[[2]string]string{}
	for _, e := range e.readItems() {
		f := e.readFields([]string{"name", "type", "serves"}, nil)
		if f == nil {
			continue
		}
		c := place.Choice{Type: types.indexOf(f["type"]), Layout: f["name"].readText()}
		served := map[int]string{}
		for _, e := range f["serves"].readItems() {
			f := e.readFields([]string{"variant", "qps"}, nil)
			if f == nil {
				continue
			}
			v, qps := variants.indexOf(f["variant"]), f["qps"].readNumber()
			if v < 0 {
				continue
			}
			if first, ok := served[v]; ok {
				e.addFault("is of the same variant as %s", first)
				continue
			}
			served[v] = e.path
			c.Partitions = append(c.Partitions, []place.Service{p.serviceOf(v, qps, families)})
		}
		if c.Type < 0 {
			continue
		}
		key := [2]string{p.Types[c.Type].Name, c.Layout}
		if first, ok := seen[key]; ok {
			e.addFault("has the same name and type as %s", first)
			continue
		}
		seen[key] = e.path
		p.Choices = append(p.Choices, c)
	}
}

// names are the names of one kind in a file, in its order.
type names struct {
	what string
	list []string
	at   map[string]int
}

func (n *names) add(e element) {
	if n.at == nil {
		n.at = map[string]int{}
	}
	name := e.readText()
	if _, ok := n.at[name]; ok && name != "" {
		e.addFault("there is a %s %q before", n.what, name)
	} else {
		n.at[name] = len(n.list)
	}
	n.list = append(n.list, name)
}

// indexOf is that of a name, -1 if there is none, which it notes.
func (n *names) indexOf(e element) int {
	name := e.readText()
	i, ok := n.at[name]
	if !ok {
		if name != "" {
			e.addFault("there is no %s %q", n.what, name)
		}
		return -1
	}
	return i
}

// An solution is the output of `muster place solve`; --json prints its fields.
type solution struct {
	ServedShare float64 `json:"served_share"`
	Accuracy    float64 `json:"accuracy"`
	Bound       float64 `json:"bound"`
	// Proven: no placement is better.
	Proven      bool            `json:"proven"`
	Agents      int             `json:"agents"`
	LeastAgents *int            `json:"least_agents,omitempty"`
	Counts      []countedLayout `json:"counts"`
	Flow        []flow          `json:"flow"`
	Seconds     float64         `json:"seconds"`
	Steps       int             `json:"steps"`

	served []float64 // by family
	points []float64 // by family: accuracy times what is served
}

type countedLayout struct {
	Type    string `json:"type"`
	Variant string `json:"variant,omitempty"`
	Layout  string `json:"layout,omitempty"`
	Count   int    `json:"count"`
}

type flow struct {
	Type    string  `json:"type"`
	Layout  string  `json:"layout,omitempty"`
	Variant string  `json:"variant"`
	QPS     float64 `json:"qps"`
}

func (p *problem) solve(steps int) (*solution, error) {
	if steps < 0 {
		return nil, misuse.Errorf("--steps is %d, want >= 0", steps)
	}
	start := time.Now()
	sol, err := place.Solve(&p.Program, steps)
	if err != nil {
		return nil, err
	}
	a := &solution{
		ServedShare: sol.Served, Accuracy: sol.Accuracy, Bound: sol.Bound, Proven: sol.Proven,
		Agents: sol.Agents, Counts: []countedLayout{}, Flow: []flow{},
		Seconds: time.Since(start).Seconds(), Steps: sol.Steps,
		served: make([]float64, len(p.Classes)), points: make([]float64, len(p.Classes)),
	}
	if p.Objective == place.FewestAgents {
		a.LeastAgents = &sol.LeastAgents
	}
	for i, c := range p.Choices {
		if sol.Counts[i] == 0 {
			continue
		}
		n := countedLayout{Type: p.Types[c.Type].Name, Variant: c.Layout, Count: sol.Counts[i]}
		if p.layouts {
			n.Variant, n.Layout = "", c.Layout
		}
		a.Counts = append(a.Counts, n)
		for j, partition := range c.Partitions {
			for k, s := range partition {
				qps := sol.Flow[i][j][k]
				if qps <= 0 {
					continue
				}
				v := p.Variants[s.Variant]
				a.Flow = append(a.Flow, flow{n.Type, n.Layout, v.Model, qps})
				a.served[s.Class] += qps
				a.points[s.Class] += qps * v.Accuracy
			}
		}
	}
	return a, nil
}

func (a *solution) writeText(to io.Writer, p *problem) error {
	var b strings.Builder
	fmt.Fprintf(&b, "served %s of the demand, accuracy %.3f points, %s\n",
		formatPercent(a.ServedShare), a.Accuracy, a.describeGap())
	b.WriteString(terminal.CountNoun(a.Agents, "agent"))
	if a.LeastAgents != nil {
		fmt.Fprintf(&b, ", at least %d are needed", *a.LeastAgents)
	}
	fmt.Fprintf(&b, "; %d steps, %.3f s\n\n", a.Steps, a.Seconds)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FAMILY\tDEMAND\tSERVED\tUNSERVED\tACCURACY")
	for k, c := range p.Classes {
		accuracy := "-"
		if a.served[k] > 0 {
			accuracy = fmt.Sprintf("%.3f", a.points[k]/a.served[k])
		}
		unserved := max(0, c.Rate-a.served[k])
		if unserved < 1e-9*c.Rate {
			unserved = 0
		}
		fmt.Fprintf(w, "%s\t%.6g\t%.6g\t%.6g\t%s\n", terminal.Plain(c.Family), c.Rate, a.served[k],
			unserved, accuracy)
	}
	fmt.Fprintln(w)
	what := "VARIANT"
	if p.layouts {
		what = "LAYOUT"
	}
	fmt.Fprintf(w, "TYPE\t%s\tAGENTS\tQUERIES/S\n", what)
	counts := slices.Clone(a.Counts)
	order := map[string]int{}
	for i, t := range p.Types {
		order[t.Name] = i
	}
	slices.SortStableFunc(counts, func(x, y countedLayout) int {
		return cmp.Compare(order[x.Type], order[y.Type])
	})
	for _, n := range counts {
		var rates []string
		for _, f := range a.Flow {
			if f.Type != n.Type || f.Layout != n.Layout {
				continue
			}
			if p.layouts {
				rates = append(rates, fmt.Sprintf("%s %.6g", terminal.Plain(f.Variant), f.QPS))
			} else if f.Variant == n.Variant {
				rates = append(rates, fmt.Sprintf("%.6g", f.QPS))
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", terminal.Plain(n.Type),
			terminal.Plain(cmp.Or(n.Variant, n.Layout)), n.Count, strings.Join(rates, ", "))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// describeGap says how good the placement is known to be.
func (a *solution) describeGap() string {
	if a.Proven {
		return "proven to be the best"
	}
	return fmt.Sprintf("at most %.3f is possible", a.Bound)
}

func formatPercent(share float64) string {
	return fmt.Sprintf("%.3f %%", 100*share)
}
