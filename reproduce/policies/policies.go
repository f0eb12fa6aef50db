// Package policies has the systems with which the papers compare the ways of matching queries to
// lanes, beside the baselines of sim/baselines.
package policies

import (
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/baselines"
)

// All are the policies, for [sim.Config.Others].
func All() []sim.Policy {
	all := []sim.Policy{{
		Name: "drs",
		NewChooser: func(c *sim.Config) match.Chooser {
			return &drs{threshold: c.Threshold, heads: map[class]bool{}}
		},
		Tune: searchThreshold,
	}}
	for _, name := range baselines.Names() {
		newChooser := baselines.New(name)
		all = append(all, sim.Policy{
			Name: name, NewChooser: func(*sim.Config) match.Chooser { return newChooser() },
		})
	}
	return all
}
