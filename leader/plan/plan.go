package plan

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Configuration is how many instances of each type, >= 0, by index of [Problem.Types].
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

// Within reports whether c is a sub-configuration of d or d itself: it has no more of any type.
func (c Configuration) Within(d Configuration) bool {
	for i, n := range c {
		if n > d[i] {
			return false
		}
	}
	return true
}

// An Estimate is what a configuration is worth: its allowable throughput in queries/s where
// [Problem.Objective] is MostThroughput, the share of queries within their QoS target, in [0, 1],
// at the demand's rate where it is LeastCost.
type Estimate struct {
	Value float64
	// StdErr is the standard error of Value, 0 where it is exact or unknown.
	StdErr float64
}

// An Evaluator says what a configuration is worth. It is given configurations of the problem
// it was made for, at least one instance, and must not keep or change them. It need not be
// safe for concurrent use.
type Evaluator interface {
	Evaluate(ctx context.Context, c Configuration) (Estimate, error)
}

// EvaluatorFunc is a function as an [Evaluator].
type EvaluatorFunc func(ctx context.Context, c Configuration) (Estimate, error)

// Evaluate calls f.
func (f EvaluatorFunc) Evaluate(ctx context.Context, c Configuration) (Estimate, error) {
	return f(ctx, c)
}

// An Evaluation is a configuration and what it was found to be worth.
type Evaluation struct {
	Configuration Configuration
	Estimate
}

// A Log is an [Evaluator] that counts and records what another one evaluates. A configuration asked
// for again is answered from the record and not counted: evaluating is what costs.
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

// Evaluations are what was evaluated, in order. The caller must not change them.
func (l *Log) Evaluations() []Evaluation { return l.evaluations }

// Count is the number of evaluations.
func (l *Log) Count() int { return len(l.evaluations) }

// A Planner finds what to buy. It calls the evaluator as often as it must; a planner that decides
// in one shot calls it never, and may be given nil. The same input gives the same result.
type Planner interface {
	Plan(ctx context.Context, p *Problem, e Evaluator) (*Result, error)
}

// A Result is what a planner found.
type Result struct {
	// Plans are ranked, the best first. Where the problem cannot be solved they are the nearest
	// that can be, and Notes say why.
	Plans []Plan
	// Evaluations are those made, in order.
	Evaluations []Evaluation
	// SearchSpace is the number of configurations to choose from.
	SearchSpace int
	// Notes are what the reader must know: types left out, a demand that cannot be met.
	Notes []string
	// Doubt says why the first plan may not be the best there is; empty where the planner is as
	// sure as its evaluator.
	Doubt string
}

// A Plan is a configuration and what is expected of it.
type Plan struct {
	Configuration Configuration
	// Price is in $/hr.
	Price float64
	// Predicted is the allowable throughput that is expected, in queries/s, never above the fluid
	// limit; 0 where only the QoS satisfaction is known.
	Predicted float64
	// Satisfaction is the share of queries within QoS at the demand's rate, in [0, 1], as
	// evaluated; 0 where it was not.
	Satisfaction float64
	// StdErr is the standard error of what was evaluated, Predicted or Satisfaction.
	StdErr float64
	// Evaluated says that an evaluator said so, not an analytic bound.
	Evaluated bool
	// Bound is the analytic upper bound that the planner ranks by, in queries/s, and FluidLimit
	// that of leader/fluid; 0: the problem has no profiles.
	Bound, FluidLimit float64
	// Binding is what keeps the configuration from serving more: "time on g4dn.xlarge".
	Binding string
	// Gains are what one instance more of each type would bring, in the problem's order.
	Gains []Gain
	// Reason says in a sentence why this plan.
	Reason string
}

// A Gain is what one instance more of a type would bring.
type Gain struct {
	Type string
	// Rate is by how much the fluid limit would rise, in queries/s, and Price what the
	// instance costs, in $/hr.
	Rate, Price float64
}
