package sim

import (
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/sim/fleet"
)

// maxAgents bounds the agents of a fleet with faults, because each of them knows all others.
const maxAgents = 1000

// validateFaults reports what is wrong with the faults, and settings that cannot be simulated with
// faults.
func (c *Config) validateFaults() (errs []error) {
	if len(c.Faults) == 0 {
		return nil
	}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if slices.Contains([]string{Priced, Prequal, ORCA, Oracle}, c.policyOrDefault()) ||
		c.findOther() != nil {
		bad("policy %s cannot be simulated with faults: no agent leads with it",
			c.policyOrDefault())
	}
	if n := c.Pool.Count(); n > maxAgents {
		bad("pool has %d instances, want 1..%d with faults", n, maxAgents)
	}
	if c.Probes < 0 {
		bad("number of lanes asked is %d, want 0 or more with faults: gateways of a fleet ask",
			c.Probes)
	}
	types, counts := make([]names.LaneType, len(c.Pool)), make([]int, len(c.Pool))
	for i, in := range c.Pool {
		types[i], counts[i] = names.LaneType(in.Type), in.Count
	}
	return append(errs, fleet.CheckTargets(c.Faults, types, counts)...)
}
