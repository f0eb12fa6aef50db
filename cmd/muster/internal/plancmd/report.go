package plancmd

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/muster-serve/muster/leader/plan"
)

const minCost = "least cost"

// A Report is the output of `muster plan`: --json prints its fields, WriteText a table. Numbers
// are rounded to six decimals, so that all machines print the same.
type Report struct {
	Planner   string   `json:"planner"`
	Plain     bool     `json:"plain,omitempty"`
	Objective string   `json:"objective"`
	Models    []string `json:"models,omitempty"`
	// Evaluator and Source are Problem.Described and Problem.Source.
	Evaluator   string           `json:"evaluator"`
	Source      string           `json:"source"`
	Budget      float64          `json:"budget_usd_per_hour,omitempty"`
	Rate        float64          `json:"rate_qps,omitempty"`
	Target      float64          `json:"target_percent"`
	Evaluations int              `json:"evaluations"`
	SearchSpace int              `json:"search_space"`
	Plans       []plannedFleet   `json:"plans"`
	Log         []loggedEstimate `json:"evaluation_log"`
	Notes       []string         `json:"notes,omitempty"`
	Doubt       string           `json:"doubt,omitempty"`
	Interrupted bool             `json:"interrupted,omitempty"` // the plans are those found by then
	Live        *FleetComparison `json:"live,omitempty"`

	// With --runs, Trials is how many evaluations the runs needed to find the best configuration.
	// The fields above are then of the first run.
	*plan.Trials
	Optimum      map[string]int `json:"optimum,omitempty"`
	OptimumPrice float64        `json:"optimum_price_usd_per_hour,omitempty"`
	optimum      string
}

type plannedFleet struct {
	Configuration map[string]int `json:"configuration"`
	Price         float64        `json:"price_usd_per_hour"`
	Predicted     float64        `json:"predicted_qps"`
	Satisfaction  float64        `json:"predicted_qos_satisfaction,omitempty"`
	StdErr        float64        `json:"standard_error"`
	// Evaluated is whether the evaluator gave Predicted or Satisfaction; otherwise Predicted is an
	// estimate by the bound.
	Evaluated  bool         `json:"evaluated"`
	Bound      float64      `json:"bound_qps"`
	FluidLimit float64      `json:"fluid_limit_qps"`
	Binding    string       `json:"binding_constraint"`
	Gains      []gainOfType `json:"one_more"`
	Reason     string       `json:"reason"`

	name string
}

type gainOfType struct {
	Type  string  `json:"instance_type"`
	Rate  float64 `json:"gain_qps"`
	Price float64 `json:"price_usd_per_hour"`
}

// A loggedEstimate is an evaluation: a throughput in queries/s, or the share of the queries within
// QoS.
type loggedEstimate struct {
	Configuration map[string]int `json:"configuration"`
	Throughput    *float64       `json:"throughput_qps,omitempty"`
	Satisfaction  *float64       `json:"qos_satisfaction,omitempty"`
	StdErr        float64        `json:"standard_error"`
}

// NewReport makes the report of the result r of the planner with that name; plain is whether it
// planned as in its paper. trials is nil unless runs were repeated.
func NewReport(p *Problem, planner string, plain bool, r *plan.Result,
	trials *plan.Trials) *Report {
	report := &Report{
		Planner: planner, Plain: plain, Objective: "most throughput", Models: p.Names,
		Evaluator: p.Described, Source: p.Source,
		Budget: p.Budget, Rate: p.Rate, Target: p.Percent,
		Evaluations: len(r.Evaluations), SearchSpace: r.SearchSpace, Notes: r.Notes, Doubt: r.Doubt,
		Live: p.Live,
		Log:  []loggedEstimate{},
	}
	if p.Objective == plan.LeastCost {
		report.Objective = minCost
	}
	counts := func(c plan.Configuration) map[string]int {
		m := map[string]int{}
		for i, n := range c {
			m[string(p.Types[i].Name)] = n
		}
		return m
	}
	if trials != nil {
		t := *trials
		t.Mean, t.Ended, t.Violating, t.Cost = roundTo6(t.Mean), roundTo6(t.Ended), roundTo6(
			t.Violating), roundTo6(t.Cost)
		report.Trials = &t
		report.Optimum, report.OptimumPrice, report.optimum = counts(trials.Optimum), roundTo6(
			trials.OptimumPrice), p.Name(trials.Optimum)
	}
	for _, one := range r.Plans {
		f := plannedFleet{
			Configuration: counts(one.Configuration), Price: roundTo6(one.Price),
			Predicted: roundTo6(one.Predicted), Satisfaction: roundTo6(one.Satisfaction),
			StdErr: roundTo6(one.StdErr), Evaluated: one.Evaluated, Bound: roundTo6(one.Bound),
			FluidLimit: roundTo6(one.FluidLimit),
			Binding:    one.Binding, Reason: one.Reason, name: p.Name(one.Configuration),
		}
		for _, g := range one.Gains {
			f.Gains = append(f.Gains, gainOfType{g.Type, roundTo6(g.Rate), g.Price})
		}
		report.Plans = append(report.Plans, f)
	}
	for _, one := range r.Evaluations {
		l := loggedEstimate{Configuration: counts(one.Configuration), StdErr: roundTo6(one.StdErr)}
		if value := roundTo6(one.Value); p.Objective == plan.LeastCost {
			l.Satisfaction = &value
		} else {
			l.Throughput = &value
		}
		report.Log = append(report.Log, l)
	}
	return report
}

// WriteText writes the report for people: the plans as a table, what limits the best one, the
// comparison with the running fleet, and notes.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	asked := fmt.Sprintf("%s within %v $/hr", r.Objective, r.Budget)
	if r.Objective == minCost {
		asked = r.Objective
		if r.Rate > 0 {
			asked += fmt.Sprintf(" for %v queries/s", r.Rate)
		}
		if r.Budget > 0 {
			asked += fmt.Sprintf(", within %v $/hr", r.Budget)
		}
	}
	if len(r.Models) > 0 {
		fmt.Fprintf(&b, "%s: ", strings.Join(r.Models, ", "))
	}
	fmt.Fprintf(&b, "%s, %v %% of the queries within QoS\n", asked, r.Target)
	planner := r.Planner
	if r.Plain {
		planner += " as in its paper (--plain)"
	}
	of := ""
	if r.SearchSpace > 0 {
		of = fmt.Sprintf(" of %d", r.SearchSpace)
	}
	fmt.Fprintf(&b, "planner %s: %d%s configurations %s (%s)\n\n", planner, r.Evaluations, of,
		r.Evaluator, r.Source)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\t$/hr\texpected\tbound\tconfiguration\twhy")
	for i, one := range r.Plans {
		expected := fmt.Sprintf("%.1f queries/s by the bound", one.Predicted)
		switch {
		case one.Evaluated && r.Objective == minCost:
			expected = fmt.Sprintf("%.2f%s %% within QoS", 100*one.Satisfaction,
				plusMinus(100*one.StdErr, 2))
		case one.Evaluated:
			expected = fmt.Sprintf("%.1f%s queries/s", one.Predicted, plusMinus(one.StdErr, 1))
		}
		bound := "-" // a table has none
		if one.Bound > 0 {
			bound = fmt.Sprintf("%.1f", one.Bound)
		}
		fmt.Fprintf(t, "%d\t%.3f\t%s\t%s\t%s\t%s\n", i+1, one.Price, expected, bound, one.name,
			one.Reason)
	}
	t.Flush()
	if first := r.Plans[0]; len(first.Gains) > 0 {
		fmt.Fprintf(
			&b,
			"\nThe limit of plan 1: %s. One more instance raises its fluid limit of %.1f "+
				"queries/s by\n", first.Binding, first.FluidLimit)
		for _, g := range first.Gains {
			fmt.Fprintf(t, "  %s\t%.1f queries/s\tfor %v $/hr\t%.1f queries/s a $/hr\n", g.Type,
				g.Rate, g.Price, g.Rate/g.Price)
		}
		t.Flush()
	}
	if r.Trials != nil {
		fmt.Fprintf(
			&b,
			"\nEvaluations until a run found the best configuration, %[2]s at %.4[3]g $/hr, over "+
				"%[1]d runs: mean %.1[4]f, median %[5]v, maximum %[6]d; %[7]d runs did not find it.\n"+
				"Of these evaluations %.1[8]f missed the target, in the mean. They cost %.2[9]f "+
				"%% "+
				"of evaluating all configurations. A run ended after %.1[10]f evaluations.\n",
			r.Runs, r.optimum, r.OptimumPrice, r.Mean, r.Median, r.Worst, r.Failed, r.Violating,
			r.Cost, r.Ended)
	}
	if r.Live != nil {
		r.Live.writeText(&b)
	}
	if r.Doubt != "" {
		fmt.Fprintf(&b, "\nNot sure: %s.\n", r.Doubt)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\nNote: %s.\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// plusMinus formats a standard error as " ± 1.2"; "" for 0, which means that it is not known.
func plusMinus(standardError float64, decimals int) string {
	if standardError == 0 {
		return ""
	}
	return fmt.Sprintf(" ± %.*f", decimals, standardError)
}

// roundTo6 rounds to six decimals, because processors differ in the last digits.
func roundTo6(x float64) float64 { return math.Round(x*1e6) / 1e6 }
