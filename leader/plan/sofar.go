package plan

import "fmt"

// SoFar returns the result of a search that was interrupted after these evaluations: their
// configurations as plans, the best first, at most top of them (0: DefaultTop). It is nil if there
// are none.
func SoFar(p *Problem, evaluations []Evaluation, top int) (*Result, error) {
	if len(evaluations) == 0 {
		return nil, nil
	}
	var a *Analysis
	if len(p.Models) > 0 {
		var err error
		if a, err = Analyse(p); err != nil {
			return nil, err
		}
	}
	r := &Result{Evaluations: evaluations}
	for _, e := range evaluations {
		r.Plans = append(r.Plans, p.evaluatedPlan(a, e))
	}
	p.rankPlans(r.Plans)
	r.Plans = r.Plans[:min(len(r.Plans), topOr(top))]
	for i := range r.Plans {
		r.Plans[i].Reason = "evaluated before the interrupt"
	}
	r.Plans[0].Reason = "the best of those evaluated before the interrupt"
	r.Doubt = fmt.Sprintf("the search was interrupted after %d evaluations", len(evaluations))
	if space, err := p.Space(); err == nil { // otherwise the search set limits of its own
		r.SearchSpace = len(space)
		r.Doubt = fmt.Sprintf("the search was interrupted after %d of %d configurations",
			len(evaluations), len(space))
	}
	return r, nil
}
