package plan

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/leader/staffing"
)

// A Configuration is the number of instances of each type, >= 0, by index of [Problem.Types].
type Configuration []int

// String writes a configuration as the papers do: (4,0,1).
func (c Configuration) String() string {
	counts := make([]string, len(c))
	for i, n := range c {
		counts[i] = strconv.Itoa(n)
	}
	return "(" + strings.Join(counts, ",") + ")"
}

// Clone returns a copy.
func (c Configuration) Clone() Configuration { return slices.Clone(c) }

// Count is the number of instances of all types.
func (c Configuration) Count() int {
	n := 0
	for _, k := range c {
		n += k
	}
	return n
}

// SafeShare is the share of c's fluid limit that c is assumed to serve within the QoS target where
// nothing was evaluated.
func (c Configuration) SafeShare() float64 { return staffing.SafeShare(float64(c.Count())) }

// Within reports whether c is a sub-configuration of d or d itself: it has no more instances of any
// type.
func (c Configuration) Within(d Configuration) bool {
	for i, n := range c {
		if n > d[i] {
			return false
		}
	}
	return true
}

// An Estimate is the value of a configuration. If [Problem.Objective] is MostThroughput, Value is
// the allowable throughput in queries/s. If it is LeastCost, Value is the share of queries within
// their QoS target at the demand's rate, in [0, 1].
type Estimate struct {
	Value float64
	// StdErr is the standard error of Value; 0 if Value is exact or its error unknown.
	StdErr float64
}

// An Evaluator estimates configurations. It is called with configurations of the problem for which
// it was made, of at least one instance, and must neither keep nor change them. It need not be safe
// for concurrent use.
type Evaluator interface {
	Evaluate(ctx context.Context, c Configuration) (Estimate, error)
}

// EvaluatorFunc is a function as an [Evaluator].
type EvaluatorFunc func(ctx context.Context, c Configuration) (Estimate, error)

// Evaluate calls f.
func (f EvaluatorFunc) Evaluate(ctx context.Context, c Configuration) (Estimate, error) {
	return f(ctx, c)
}

// An Evaluation is a configuration and its estimate.
type Evaluation struct {
	Configuration Configuration
	Estimate
}

// A Log is an [Evaluator] that passes each configuration to another one once, and records and
// counts the evaluations. It answers a repeated configuration from the record and does not count
// it, because only evaluating costs.
type Log struct {
	evaluator   Evaluator
	evaluations []Evaluation
	known       map[string]int // by Configuration.String
}

// NewLog returns an empty log of e.
func NewLog(e Evaluator) *Log { return &Log{evaluator: e, known: map[string]int{}} }

// Evaluate evaluates c, or recalls it. Its error names the configuration.
func (l *Log) Evaluate(ctx context.Context, c Configuration) (Estimate, error) {
	key := c.String()
	if i, ok := l.known[key]; ok {
		return l.evaluations[i].Estimate, nil
	}
	if err := ctx.Err(); err != nil {
		return Estimate{}, err
	}
	e, err := l.evaluator.Evaluate(ctx, c)
	if err != nil {
		return Estimate{}, fmt.Errorf("evaluate configuration %s: %w", key, err)
	}
	l.known[key] = len(l.evaluations)
	l.evaluations = append(l.evaluations, Evaluation{c.Clone(), e})
	return e, nil
}

// Evaluations returns the evaluations in order. The caller must not change them.
func (l *Log) Evaluations() []Evaluation { return l.evaluations }

// Count is the number of evaluations.
func (l *Log) Count() int { return len(l.evaluations) }

// A Planner finds the configurations to buy. It calls the evaluator as often as it needs to. A
// planner that decides in one shot never calls it, and may be given nil. The same input gives the
// same result.
type Planner interface {
	Plan(ctx context.Context, p *Problem, e Evaluator) (*Result, error)
}

// A Result is the outcome of a planner.
type Result struct {
	// Plans are ranked, the best first. If the problem cannot be solved, they are the plans that
	// come nearest, and Notes say why.
	Plans []Plan
	// Evaluations are the evaluations made, in order.
	Evaluations []Evaluation
	// SearchSpace is the number of configurations to choose from; 0 if the search was interrupted
	// and the problem itself does not limit them.
	SearchSpace int
	// Notes are sentences for the user: types left out, a demand that cannot be met.
	Notes []string
	// Doubt says why the first plan may not be the best one. It is empty if the planner is as sure
	// as its evaluator.
	Doubt string
}

// A Plan is a configuration and its expected performance.
type Plan struct {
	Configuration Configuration
	// Price is in $/hr.
	Price float64
	// Predicted is the expected allowable throughput in queries/s, never above the fluid limit; 0
	// if only Satisfaction is known.
	Predicted float64
	// Satisfaction is the share of queries within their QoS target at the demand's rate, in [0, 1],
	// by the evaluator; 0 if it was not evaluated.
	Satisfaction float64
	// StdErr is the standard error of the evaluated number, Predicted or Satisfaction.
	StdErr float64
	// Evaluated says that Predicted or Satisfaction comes from an evaluator, not from an analytic
	// bound.
	Evaluated bool
	// Bound is the analytic upper bound by which the planner ranks, FluidLimit the one of package
	// fluid, both in queries/s; 0 if the problem has no profiles.
	Bound, FluidLimit float64
	// Binding names what limits the configuration's throughput, such as "time on g4dn.xlarge".
	Binding string
	// Gains are the gains of one instance more of each type, in the problem's order.
	Gains []Gain
	// Reason says in a sentence why the planner chose this plan.
	Reason string
}

// A Gain is the effect of one instance more of a type.
type Gain struct {
	Type string
	// Rate is by how much the fluid limit would rise, in queries/s. Price is the instance's price
	// in $/hr.
	Rate, Price float64
}
