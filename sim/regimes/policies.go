package regimes

import (
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/baselines"
)

// A Policy is a policy under which regimes run: one of production's, or with NewChooser a baseline
// that production does not have.
type Policy struct {
	Name       string
	NewChooser func() match.Chooser
}

// Subject is the name of the policy that is held against the others.
const Subject = match.DefaultPolicy

// Policies are the policies of the benchmark, the subject first.
func Policies() []Policy {
	all := []Policy{{Name: Subject}, {Name: "kairos"}, {Name: "fcfs"}}
	for _, name := range []string{"clockwork-earliest", "edf", "shortest-work", "two-choices"} {
		all = append(all, Policy{name, baselines.New(name)})
	}
	return all
}
