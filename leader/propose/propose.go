// Package propose decides when the leader plans for the fleet as it is, and in which state a plan
// is: proposed, in force or superseded.
//
// In come the instances that serve, what is asked of them and how many queries are in time
// ([Load]); out go reasons to plan, and plans by [plan.React]. It starts no goroutine and reads no
// clock: the caller polls it.
package propose

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
)

const (
	// Every is the longest time between two polls.
	Every = 10 * time.Second
	// rest is the least time between two plans. A demand that changes all the time must not keep
	// the leader planning, nor fill its log.
	rest = time.Minute
	// present is for how long a rate counts as that of the present.
	present = time.Minute
	// minMoved is by which share the rate must differ from the one planned for. Chosen: about what
	// fleets of a few machines leave free (staffing.SafeShare), so that the plan still serves the
	// rate.
	minMoved = 0.15
	// byChance is by which share the rate of ten seconds may exceed what a fleet is sure to serve
	// before that fleet is no saving any more: it varies. Chosen: the standard deviation of the mean
	// of ten seconds at 40 queries/s.
	byChance = 0.05
)

// A State is what has become of a plan.
type State string

// The states of plans. A plan that could not be made has none.
const (
	// Proposed: another fleet is better than the one that runs.
	Proposed State = "proposed"
	// Waits: it is, and will be rented once somebody approves it.
	Waits State = "waits for approval"
	// InForce: the fleet that runs is the one planned.
	InForce State = "in force"
	// Superseded: the plan is for another fleet or another demand than those of now.
	Superseded State = "superseded"
)

// A Load is the fleet, and what is asked of it, at one moment. The caller must not change it
// afterwards.
type Load struct {
	Instances map[profiles.InstanceType]int // that serve
	Models    []ModelLoad
}

// A ModelLoad is what is asked of a model, by its name in the plans' problems.
type ModelLoad struct {
	Model string
	Rate  float64 // queries/s that arrive, in the mean of ten seconds
	// InTime is the share of the last minute's queries that were answered in time, of Queries;
	// Target the share that should be. They count if Queries > 0.
	InTime, Target, Queries float64
}

// misses reports whether fewer queries were in time than should be, by more than two standard
// errors.
func (m *ModelLoad) misses() bool {
	return m.Queries > 0 &&
		m.InTime < m.Target-2*math.Sqrt(m.Target*(1-m.Target)/m.Queries)
}

// missed says which models miss their targets; "" if none does.
func (l *Load) missed() string {
	var all []string
	for i := range l.Models {
		if m := &l.Models[i]; m.misses() {
			all = append(all, fmt.Sprintf("%.2f %% of the queries for %s were in time in the last "+
				"minute, of %.4g %% wanted", 100*m.InTime, m.Model, 100*m.Target))
		}
	}
	return strings.Join(all, "; ")
}

func (l *Load) rate() (sum float64) {
	for i := range l.Models {
		sum += l.Models[i].Rate
	}
	return sum
}

// A Plan is what was planned. Problem is what it solves; Now and Best count instances of its types.
type Plan struct {
	Trigger string // "demand", "fleet" or "time"
	State   State
	Reason  string // in words: why the fleet should change or should not, or why there is no plan
	Notes   []string
	Priced  bool // all types that run have a price
	Change  bool // Best is worth a change
	Gain    float64
	Problem *plan.Problem
	Now     *plan.Plan // what ran when the plan was made; nil: there is no plan
	Best    *plan.Plan // nil: what ran was the best

	missed string
}

// Rate is the queries/s planned for.
func (p *Plan) Rate() (sum float64) {
	if p.Problem != nil {
		for i := range p.Problem.Models {
			sum += p.Problem.Models[i].Weight
		}
	}
	return sum
}

// best is the fleet to have by the plan.
func (p *Plan) best() *plan.Plan {
	if p.Change {
		return p.Best
	}
	return p.Now
}

// counts are a configuration's instances.
func (p *Plan) counts(c plan.Configuration) map[profiles.InstanceType]int {
	all := map[profiles.InstanceType]int{}
	for i, n := range c {
		if n > 0 {
			all[p.Problem.Types[i].Name] = n
		}
	}
	return all
}

// A Proposer keeps the last plan of a term. The zero value has none. It is not safe for concurrent
// use. Times must not run backwards.
type Proposer struct {
	plan    *Plan     // the last one
	at      time.Time // when the last plan was made that did not fail; zero: none was
	forced  time.Time // when one was last made because the demand had changed
	planned Load      // the load of the last plan
	recent  []moment  // of the present, the newest last
}

type moment struct {
	at   time.Time
	load Load
}

// Poll takes the present load. It returns why to plan now, "" if nothing calls for it, and after
// what time to poll again at the latest. changed says that the demand has changed since it was last
// planned for.
func (p *Proposer) Poll(now time.Time, load Load, changed bool) (trigger string,
	next time.Duration) {
	p.recent = append(slices.DeleteFunc(p.recent, func(m moment) bool {
		return now.Sub(m.at) >= present
	}), moment{now, load})
	next = Every
	if changed {
		if wait := p.forced.Add(rest).Sub(now); wait > 0 {
			next = min(next, wait)
		} else {
			return "demand", next
		}
	}
	rate := load.rate()
	switch {
	case rate <= 0 || len(load.Instances) == 0:
		return "", next
	case p.at.IsZero():
		return "fleet", next
	case now.Sub(p.at) < rest:
		return "", next
	case !maps.Equal(p.planned.Instances, load.Instances):
		return "fleet", next
	case p.plan.State == Superseded || p.plan.missed != "",
		math.Abs(rate-p.planned.rate()) > minMoved*max(p.planned.rate(), rate):
		return "time", next
	}
	return "", next
}

// Plan plans for the load of the last poll, and for the busiest ten seconds of the present minute
// where that is more. problem has the rates as weights of its models, and running what runs, of its
// types. Without prices, priced is false, and no other fleet is proposed. The error says why there
// is no plan.
func (p *Proposer) Plan(ctx context.Context, now time.Time, trigger string, problem *plan.Problem,
	running plan.Configuration, priced bool) (*Plan, error) {
	if trigger == "demand" {
		p.forced = now
	}
	at := *problem
	at.Models = slices.Clone(problem.Models)
	for i := range at.Models {
		at.Models[i].Weight = max(at.Models[i].Weight, p.peak(at.Models[i].Name))
	}
	out := &Plan{Trigger: trigger, State: InForce, Priced: priced, Problem: &at}
	if err := out.decide(ctx, running); err != nil {
		return nil, err
	}
	load := Load{}
	if n := len(p.recent); n > 0 {
		load = p.recent[n-1].load
	}
	if out.missed = load.missed(); out.missed != "" {
		out.refuseSmaller()
	}
	if out.Change {
		out.State = Proposed
	}
	p.plan, p.at, p.planned = out, now, load
	return out, nil
}

// Failed says that there is no plan, and why.
func (p *Proposer) Failed(now time.Time, trigger string, err error) *Plan {
	if trigger == "demand" {
		p.forced = now
	}
	p.plan = &Plan{Trigger: trigger, Reason: "no plan: " + err.Error(), Priced: true}
	return p.plan
}

// peak is the highest rate at which queries for a model came in the present minute.
func (p *Proposer) peak(model string) (rate float64) {
	for _, m := range p.recent {
		for i := range m.load.Models {
			if m.load.Models[i].Model == model {
				rate = max(rate, m.load.Models[i].Rate)
			}
		}
	}
	return rate
}

// decide fills the plan.
func (p *Plan) decide(ctx context.Context, running plan.Configuration) error {
	if !p.Priced {
		p.Problem.Objective, p.Problem.Rate = plan.LeastCost, p.Rate()
		a, err := plan.Analyse(p.Problem)
		if err != nil {
			return err
		}
		now, err := a.DescribeConfiguration(running, "what runs now")
		if err != nil {
			return err
		}
		p.Now = &now
		p.Reason = "the leader proposes no fleet before it knows the prices of all types"
		return nil
	}
	d, err := plan.React(ctx, p.Problem, running)
	if err != nil {
		return err
	}
	p.Now, p.Change, p.Gain, p.Reason, p.Notes = &d.Current, d.Change, d.Gain, d.Reason,
		d.Result.Notes
	if d.Change {
		p.Best = &d.Plan
	}
	return nil
}

// refuseSmaller takes back a change to a fleet that serves no more than the present one, since that
// is late already: what profiles say of it is too good.
func (p *Plan) refuseSmaller() {
	if p.Change && p.Best.FluidLimit > p.Now.FluidLimit {
		return
	}
	why := "nothing that serves less than what runs is proposed"
	if !p.Change {
		why = p.Reason
	}
	p.Change, p.Best, p.Gain, p.Reason = false, nil, 0, p.missed+": "+why
}

// Revise returns the last plan as it is for the load of the last poll, and whether its state has
// changed since the last call or plan.
func (p *Proposer) Revise() (*Plan, bool) {
	if p.plan == nil || p.plan.State == "" || p.plan.State == Superseded || len(p.recent) == 0 {
		return p.plan, false
	}
	load := p.recent[len(p.recent)-1].load
	mean := 0.0
	for i := range p.recent {
		mean += p.plan.rateOf(&p.recent[i].load) / float64(len(p.recent))
	}
	state, why := p.plan.stateFor(&load, mean)
	if state == p.plan.State {
		return p.plan, false
	}
	revised := *p.plan
	revised.State = state
	if state == Superseded {
		revised.Change, revised.Reason = false, why
	}
	p.plan = &revised
	return p.plan, true
}

// rateOf is the rate, in queries/s, of a load's models that were planned for.
func (p *Plan) rateOf(load *Load) (rate float64) {
	for i := range load.Models {
		if slices.ContainsFunc(p.Problem.Models, func(m plan.ModelDemand) bool {
			return m.Name == load.Models[i].Model
		}) {
			rate += load.Models[i].Rate
		}
	}
	return rate
}

// stateFor returns the state of a plan for a load and, of a superseded one, why. mean is the mean
// rate of the present minute.
func (p *Plan) stateFor(load *Load, mean float64) (state State, why string) {
	best := p.best()
	now, planned := p.counts(p.Now.Configuration), p.counts(best.Configuration)
	switch {
	case maps.Equal(load.Instances, planned):
		state = InForce
	case maps.Equal(load.Instances, now):
		state = Proposed
	default:
		return Superseded, "the instances are others than when it was planned"
	}
	rate := p.rateOf(load)
	if rate > best.FluidLimit {
		return Superseded, fmt.Sprintf("%.4g queries/s arrive, and the fleet planned for %.4g "+
			"serves at most %.4g", rate, p.Rate(), best.FluidLimit)
	}
	if state != Proposed || best.FluidLimit > p.Now.FluidLimit {
		return state, ""
	}
	if sure := best.Predicted; max(rate/(1+byChance), mean) > sure {
		return Superseded, fmt.Sprintf("%.4g queries/s arrive, and the fleet planned for %.4g is "+
			"sure to serve %.4g", rate, p.Rate(), sure)
	}
	if missed := load.missed(); missed != "" {
		return Superseded, missed
	}
	return state, ""
}
