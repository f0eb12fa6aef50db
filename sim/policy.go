package sim

import (
	"slices"

	"github.com/muster-serve/muster/leader/match"
)

// A Policy is one from outside of production: a baseline, or a system to compare with.
type Policy struct {
	Name string
	// NewChooser makes the policy of one shard in a run.
	NewChooser func(c *Config) match.Chooser
	// Tune, if not nil, searches for the Config's Threshold with the highest throughput, which is a
	// batch size of 0..largest; throughput returns that of a threshold.
	Tune func(largest int, throughput func(threshold int) (float64, error)) (threshold int,
		best float64, err error)
}

// DefaultPolicy is the policy of a Config that names none.
const DefaultPolicy = match.DefaultPolicy

// The simulator's policies beside those of leader/match.
const (
	Priced  = "priced"
	Prequal = "prequal"
	ORCA    = "orca"
	Oracle  = "oracle"
)

// own are the policies that only the simulator has: priced, prequal and orca (gateways decide
// without a leader), and oracle (knows the future).
var own = []string{Priced, Prequal, ORCA, Oracle}

// Policies lists the names that [Config.Policy] accepts in any Config: those of leader/match, and
// the simulator's own.
func Policies() []string { return append(match.Policies(), own...) }

// findOther returns the policy of Others that Policy names; nil if Policy names none of them.
func (c *Config) findOther() *Policy {
	for i := range c.Others {
		if c.Others[i].Name == c.Policy {
			return &c.Others[i]
		}
	}
	return nil
}

// tunes reports whether the threshold of the policy is to be searched.
func (c *Config) tunes() bool {
	other := c.findOther()
	return other != nil && other.Tune != nil && c.Threshold == 0
}

func (c *Config) validatePolicy() error {
	if c.Policy == "" {
		return nil
	}
	others := slices.Clone(own)
	for _, other := range c.Others {
		others = append(others, other.Name)
	}
	return match.CheckPolicy(c.Policy, others...)
}

func (c *Config) policyOrDefault() string {
	if c.Policy == "" {
		return DefaultPolicy
	}
	return c.Policy
}
